//! Lines of the wire in Python's logging, as logger moe.wire.

use pyo3::intern;
use pyo3::prelude::*;

use crate::logs::{self, Level};

/// Hands over what waits. For threads of the wire, with none of its locks held; nothing once the interpreter ends.
pub fn hand_over() {
    if logs::waiting() {
        Python::try_attach(|py| {
            if let Err(error) = write(py, logs::take()) {
                error.write_unraisable(py, None);
            }
        });
    }
}

/// The same for a thread of the interpreter, where no thread of the wire looks.
#[pyfunction]
pub fn hand_over_logs(py: Python<'_>) -> PyResult<()> {
    write(py, logs::take())
}

fn write(py: Python<'_>, lines: Vec<(Level, String)>) -> PyResult<()> {
    let logger = py
        .import("logging")?
        .call_method1("getLogger", ("moe.wire",))?;
    for (level, line) in lines {
        let number = match level {
            Level::Debug => 10,
            Level::Info => 20,
            Level::Warning => 30,
        };
        logger.call_method1(intern!(py, "log"), (number, "%s", line))?;
    }
    Ok(())
}
