//! The door to Python: `moe_wire_native`, which moe.wire.native wraps.
//!
//! Tensors are read where they lie, under their caller's reference; the interpreter's lock is given back before anything
//! waits, and never taken while one of the wire's own locks is held. What the interpreter has to say to a thread of the
//! wire, and the other way round, goes through `logs` and plain values.

mod aggregator;
mod expert;
mod log_lines;
mod memory;
mod policy;
mod router;
mod settings;

use pyo3::prelude::*;

#[pymodule]
fn moe_wire_native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<memory::Memory>()?;
    module.add_class::<router::Answer>()?;
    module.add_class::<router::Places>()?;
    module.add_class::<router::Router>()?;
    module.add_class::<policy::Policy>()?;
    module.add_class::<expert::Batch>()?;
    module.add_class::<expert::Expert>()?;
    module.add_class::<aggregator::Aggregator>()?;
    module.add_function(wrap_pyfunction!(expert::echo_kernel, module)?)?;
    module.add_function(wrap_pyfunction!(log_lines::hand_over_logs, module)?)?;
    Ok(())
}
