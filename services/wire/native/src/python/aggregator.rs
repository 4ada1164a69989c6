//! The aggregator's end, which needs nothing of the interpreter once it serves.

use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use std::time::Duration;

use crate::aggregator;
use crate::python::expert::listener;
use crate::python::router::{figures, Figures};
use crate::python::settings::{limits_of, settings_of};

#[pyclass(frozen, weakref, module = "moe_wire_native")]
pub struct Aggregator {
    inner: aggregator::Aggregator,
}

#[pymethods]
impl Aggregator {
    /// Serves on a listening socket, which is closed by it. OSError when that can't be.
    #[new]
    fn new(
        py: Python<'_>,
        name: &str,
        instance: &str,
        limits: &Bound<'_, PyAny>,
        settings: &Bound<'_, PyAny>,
        socket: i32,
        back_end: Option<String>,
    ) -> PyResult<Self> {
        let (limits, settings) = (limits_of(limits)?, settings_of(settings)?);
        let listener = listener(socket)?;
        let started = py.detach(|| {
            aggregator::Aggregator::start(name, instance, limits, settings, listener, back_end)
        });
        let inner =
            started.map_err(|error| PyOSError::new_err(format!("the aggregator: {error}")))?;
        Ok(Aggregator { inner })
    }

    fn set_experts(&self, py: Python<'_>, endpoints: Vec<String>) {
        py.detach(|| self.inner.set_experts(&endpoints));
    }

    /// The combiner's figures, and Collect streams that are open.
    fn figures(&self) -> (Figures, usize) {
        let found = self.inner.figures();
        (figures((found.tally, found.open)), found.sources)
    }

    /// Ends the routers' streams, each once its calls are answered; False after so long, or when it was closed.
    fn drained(&self, py: Python<'_>, timeout_s: f64) -> bool {
        py.detach(|| self.inner.drained(Duration::from_secs_f64(timeout_s)))
    }

    fn close(&self, py: Python<'_>) {
        py.detach(|| self.inner.close());
    }
}
