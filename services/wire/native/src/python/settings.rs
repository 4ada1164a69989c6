//! Settings and limits, read from the dataclasses that carry them in Python.

use std::time::Duration;

use pyo3::exceptions::PyValueError;
use pyo3::intern;
use pyo3::prelude::*;

use crate::combiner::Limits;
use crate::settings::Settings;

/// moe.wire.settings.WireSettings.
pub fn settings_of(given: &Bound<'_, PyAny>) -> PyResult<Settings> {
    let py = given.py();
    let seconds = |name| {
        let got: f64 = given.getattr(name)?.extract()?;
        Duration::try_from_secs_f64(got).map_err(|_| {
            PyValueError::new_err(format!("{name}: got {got}, want seconds from 0 on"))
        })
    };
    Ok(Settings {
        max_message_bytes: given.getattr(intern!(py, "max_message_bytes"))?.extract()?,
        max_outbox_bytes: given.getattr(intern!(py, "max_outbox_bytes"))?.extract()?,
        open_timeout: seconds(intern!(py, "open_timeout_s"))?,
        keepalive: seconds(intern!(py, "keepalive_s"))?,
        keepalive_timeout: seconds(intern!(py, "keepalive_timeout_s"))?,
        max_concurrent_streams: given
            .getattr(intern!(py, "max_concurrent_streams"))?
            .extract()?,
    })
}

/// moe.wire.combining.CombinerLimits.
pub fn limits_of(given: &Bound<'_, PyAny>) -> PyResult<Limits> {
    let py = given.py();
    Ok(Limits {
        open_calls: given.getattr(intern!(py, "open_calls"))?.extract()?,
        answer_bytes: given.getattr(intern!(py, "answer_bytes"))?.extract()?,
        held_bytes: given.getattr(intern!(py, "held_bytes"))?.extract()?,
        early_bytes: given.getattr(intern!(py, "early_bytes"))?.extract()?,
        early_seconds: given.getattr(intern!(py, "early_seconds"))?.extract()?,
        closed_calls: given.getattr(intern!(py, "closed_calls"))?.extract()?,
    })
}
