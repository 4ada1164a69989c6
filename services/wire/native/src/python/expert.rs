//! An expert's end for its compute thread: hands out batches as memory, takes partials from where torch wrote them.

use std::collections::{BTreeMap, HashMap};
use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;

use crate::driver::Driver;
use crate::expert::kernel::{echo, Function};
use crate::expert::{self, Kernel, Limits};
use crate::python::log_lines;
use crate::python::memory::{bytes_of, dtype_of, torch_dtype, Memory};
use crate::python::settings::settings_of;
use crate::queue;
use crate::serve::Listener;

/// Call id, part, aggregator, rows, slot_rows, slot_experts, slot_weights, dtype of the partial, deadline.
type Item = (
    u64,
    u32,
    String,
    Memory,
    Memory,
    Memory,
    Memory,
    Py<PyAny>,
    Option<f64>,
);

/// A batch that was handed out and waits for its partials.
#[pyclass(frozen, weakref, module = "moe_wire_native")]
pub struct Batch {
    inner: Mutex<Option<expert::Batch>>,
}

impl Batch {
    fn take(&self) -> PyResult<expert::Batch> {
        let taken = self.inner.lock().unwrap().take();
        taken.ok_or_else(|| PyValueError::new_err("the batch was finished or failed before"))
    }
}

#[pyclass(frozen, weakref, module = "moe_wire_native")]
pub struct Expert {
    inner: Arc<expert::Expert>,
}

#[pymethods]
impl Expert {
    /// OSError when a thread can't be had.
    #[new]
    fn new(
        instance: &str,
        limits: &Bound<'_, PyAny>,
        settings: &Bound<'_, PyAny>,
    ) -> PyResult<Self> {
        let driver = Driver::new("moe-wire", log_lines::hand_over)
            .map_err(|error| PyOSError::new_err(format!("the wire's runtime: {error}")))?;
        let (limits, settings) = (limits_of(limits)?, settings_of(settings)?);
        let inner = expert::Expert::new(instance, limits, settings, driver);
        Ok(Expert { inner })
    }

    /// Serves on a listening socket, which is closed by it. OSError when that can't be.
    fn serve(&self, py: Python<'_>, socket: i32, back_end: Option<String>) -> PyResult<()> {
        let listener = listener(socket)?;
        py.detach(|| self.inner.serve(listener, back_end))?;
        Ok(())
    }

    /// Layer, batch, items; None after the timeout or when drained.
    fn next_batch(
        &self,
        py: Python<'_>,
        timeout_s: f64,
    ) -> PyResult<Option<(u32, Batch, Vec<Item>)>> {
        let timeout = Duration::try_from_secs_f64(timeout_s.max(0.0)).unwrap_or(Duration::MAX);
        let Some(batch) = py.detach(|| self.inner.next_batch(timeout)) else {
            return Ok(None);
        };
        let items: PyResult<Vec<Item>> = batch.items.iter().map(|item| told(py, item)).collect();
        let layer = batch.layer;
        let inner = Mutex::new(Some(batch));
        Ok(Some((layer, Batch { inner }, items?)))
    }

    /// ValueError when the partials don't belong to the batch.
    fn finish(
        &self,
        py: Python<'_>,
        batch: &Batch,
        partials: Vec<Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let partials: PyResult<Vec<Bytes>> = partials.iter().map(bytes_of).collect();
        let (partials, batch) = (partials?, batch.take()?);
        py.detach(|| self.inner.finish(batch, partials))
            .map_err(PyValueError::new_err)
    }

    fn fail(&self, py: Python<'_>, batch: &Batch, message: &str) -> PyResult<()> {
        let batch = batch.take()?;
        py.detach(|| self.inner.fail(batch, message));
        Ok(())
    }

    /// Computes batches of a layer without the interpreter. function, handle: the addresses of PackedGroup.entry(), which
    /// keeps both for the process's life. threads: that compute, this one included.
    fn set_kernel(&self, layer: u32, function: usize, handle: usize, threads: i32) -> PyResult<()> {
        if function == 0 || handle == 0 {
            return Err(PyValueError::new_err("kernel: got a null address"));
        }
        // SAFETY: the caller passes PackedGroup.entry(): the address of moe_group_run, of this type (kernels/csrc/abi.h)
        // and of a handle for the rows and experts of this layer, neither of which is ever freed.
        unsafe {
            let function = std::mem::transmute::<usize, Function>(function);
            let kernel = Kernel {
                function,
                handle,
                threads,
            };
            self.inner.set_kernel(layer, kernel);
        }
        Ok(())
    }

    fn drain(&self, py: Python<'_>) {
        py.detach(|| self.inner.drain());
    }

    /// Whether all is answered and no dispatch came for so long.
    fn is_settled(&self, quiet_s: f64) -> bool {
        self.inner.is_settled(Duration::from_secs_f64(quiet_s))
    }

    /// Ends the streams, once what was accepted is answered or after so long.
    fn drained(&self, py: Python<'_>, timeout_s: f64) -> bool {
        py.detach(|| self.inner.drained(Duration::from_secs_f64(timeout_s)))
    }

    /// queued_rows, overloaded, expired, invalid, dispatches, waited_s, rows_per_s.
    fn stats(&self) -> (usize, u64, u64, u64, u64, f64, f64) {
        let stats = self.inner.stats();
        (
            stats.queued_rows,
            stats.overloaded,
            stats.expired,
            stats.invalid,
            stats.dispatches,
            stats.waited_s,
            stats.rows_per_s,
        )
    }

    /// Without the interpreter: rows, batches, seconds, slots by expert.
    fn computed(&self) -> (u64, u64, f64, BTreeMap<i32, u64>) {
        let computed = self.inner.computed();
        (
            computed.rows,
            computed.batches,
            computed.seconds,
            computed.slots_by_expert,
        )
    }

    fn close(&self, py: Python<'_>) {
        py.detach(|| self.inner.close());
    }
}

impl Drop for Expert {
    /// The caretaker may be waiting for the interpreter's lock, which whoever drops this holds.
    fn drop(&mut self) {
        Python::try_attach(|py| py.detach(|| self.inner.close()));
    }
}

/// A listening socket that was given away by its number.
pub fn listener(socket: i32) -> PyResult<Listener> {
    if socket < 0 {
        return Err(PyValueError::new_err(format!(
            "socket: got {socket}, want a file descriptor"
        )));
    }
    // SAFETY: the caller detached it from its Python object and gives it away.
    let owned = unsafe { OwnedFd::from_raw_fd(socket) };
    Ok(Listener::from_fd(owned)?)
}

fn told(py: Python<'_>, item: &queue::Item) -> PyResult<Item> {
    Ok((
        item.key.call_id,
        item.part,
        item.aggregator.clone(),
        Memory::new(item.rows.clone()),
        Memory::new(item.slot_rows.clone()),
        Memory::new(item.slot_experts.clone()),
        Memory::new(item.slot_weights.clone()),
        torch_dtype(py, item.partial_dtype)?,
        item.deadline,
    ))
}

/// moe.wire.port.ExpertLimits.
fn limits_of(given: &Bound<'_, PyAny>) -> PyResult<Limits> {
    let py = given.py();
    let held = given.getattr(intern!(py, "experts_by_layer"))?;
    let held: HashMap<u32, Vec<i32>> = held
        .call_method0("items")?
        .try_iter()?
        .map(|item| {
            let (layer, experts): (u32, Bound<'_, PyAny>) = item?.extract()?;
            let experts = experts.try_iter()?.map(|expert| expert?.extract());
            Ok((layer, experts.collect::<PyResult<Vec<i32>>>()?))
        })
        .collect::<PyResult<_>>()?;
    Ok(Limits {
        hidden: given.getattr(intern!(py, "hidden"))?.extract()?,
        dtype: dtype_of(&given.getattr(intern!(py, "dtype"))?)?,
        experts_by_layer: held.into_iter().collect(),
        max_rows: given.getattr(intern!(py, "max_rows"))?.extract()?,
        max_queued_rows: given.getattr(intern!(py, "max_queued_rows"))?.extract()?,
        max_batch_rows: given.getattr(intern!(py, "max_batch_rows"))?.extract()?,
    })
}

/// The address of a kernel that answers rows as they came, for benchmarks of the wire; its handle: bytes of a row.
#[pyfunction]
pub fn echo_kernel() -> usize {
    echo as Function as usize
}
