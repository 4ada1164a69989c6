//! A router's end for the engine's thread: one call sends a layer's parts and waits for news of it.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use pyo3::exceptions::{PyKeyError, PyOSError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::api::aggregator::MissingPolicy;
use crate::api::expert::DispatchRequest;
use crate::api::tensor::{Dtype, Tensor};
use crate::combiner::{Key, Plan, PlannedPart, Tally};
use crate::driver::Driver;
use crate::python::log_lines;
use crate::python::memory::{dtype_of, view, Memory, View};
use crate::python::settings::{limits_of, settings_of};
use crate::router::{self, timeout_us, Dispatch, Outcome};
use crate::sums::value;
use crate::tensors::item_size;

type Missing = (u32, String, usize);
/// combined, open, duplicates, refused, missing, failed.
pub type Figures = (u64, usize, u64, u64, u64, u64);
type Failure = (u32, String, &'static str, String, f64);

/// News of a layer call. kind: combined, incomplete, aggregator_lost or failed; the rest is as far as the kind has it.
#[pyclass(frozen, get_all, module = "moe_wire_native")]
pub struct Answer {
    kind: &'static str,
    rows: Option<Py<Memory>>,
    /// Part, reason, rows.
    missing: Vec<Missing>,
    /// Part, endpoint, kind, message, seconds to wait.
    failures: Vec<Failure>,
    message: String,
    deadline: bool,
}

impl Answer {
    fn new(kind: &'static str) -> Self {
        Answer {
            kind,
            rows: None,
            missing: vec![],
            failures: vec![],
            message: String::new(),
            deadline: false,
        }
    }

    fn of(py: Python<'_>, outcome: Outcome) -> PyResult<Self> {
        Ok(match outcome {
            Outcome::Combined { rows, missing } => Answer {
                rows: Some(Py::new(py, Memory::new(rows))?),
                missing: missing
                    .into_iter()
                    .map(|m| (m.part, m.reason, m.rows))
                    .collect(),
                ..Answer::new("combined")
            },
            Outcome::Incomplete(failures) => Answer {
                failures: failures
                    .into_iter()
                    .map(|f| {
                        (
                            f.part,
                            f.endpoint,
                            f.kind.name(),
                            f.message,
                            f.retry_after_s,
                        )
                    })
                    .collect(),
                ..Answer::new("incomplete")
            },
            Outcome::AggregatorLost(message) => Answer {
                message,
                ..Answer::new("aggregator_lost")
            },
            Outcome::CallFailed { message, deadline } => Answer {
                message,
                deadline,
                ..Answer::new("failed")
            },
        })
    }
}

/// Where the tensors of one part lie.
struct Part {
    part: u32,
    token_index: View,
    slot_rows: View,
    slot_experts: View,
    slot_weights: View,
}

/// Where a layer call's tensors lie, while the caller holds them.
struct Call {
    key: Key,
    hidden: View,
    parts: Vec<Part>,
    policy: MissingPolicy,
    deadline: f64,
    partial_dtype: Dtype,
}

#[pyclass(frozen, weakref, module = "moe_wire_native")]
pub struct Router {
    inner: Arc<router::Router>,
}

#[pymethods]
impl Router {
    /// name: new at each start. combiner: bounds of the one inside, None for none. OSError when a thread can't be had.
    #[new]
    #[pyo3(signature = (name, combiner, settings))]
    fn new(
        name: &str,
        combiner: Option<&Bound<'_, PyAny>>,
        settings: &Bound<'_, PyAny>,
    ) -> PyResult<Self> {
        let driver = Driver::new("moe-wire", log_lines::hand_over)
            .map_err(|error| PyOSError::new_err(format!("the wire's runtime: {error}")))?;
        let limits = combiner.map(limits_of).transpose()?;
        let inner = router::Router::new(name, limits, settings_of(settings)?, driver);
        Ok(Router { inner })
    }

    /// See moe.wire.port.RouterWire.exchange. KeyError for a target without a part, ValueError for an index out of range.
    fn exchange(
        &self,
        py: Python<'_>,
        call: &Bound<'_, PyAny>,
        targets: &Bound<'_, PyAny>,
        aggregator: Option<String>,
        until: f64,
    ) -> PyResult<Answer> {
        let targets = targets_of(targets)?;
        let key = key_of(call)?;
        let mut kept = vec![];
        let parts = !targets.is_empty() || !self.inner.knows(key);
        let call = call_of(call, key, parts, &mut kept)?;
        let router = &self.inner;
        let outcome = py.detach(move || {
            let dispatches = dispatches(&call, targets)?;
            let aggregator = aggregator.as_deref();
            Ok::<_, PyErr>(router.exchange(
                key,
                || plan(&call),
                dispatches,
                aggregator,
                call.deadline,
                until,
            ))
        })?;
        Answer::of(py, outcome)
    }

    fn give_up(
        &self,
        py: Python<'_>,
        call: &Bound<'_, PyAny>,
        part: u32,
        reason: String,
    ) -> PyResult<()> {
        let key = key_of(call)?;
        py.detach(|| self.inner.give_up(key, part, reason));
        Ok(())
    }

    fn abandon(&self, py: Python<'_>, call: &Bound<'_, PyAny>) -> PyResult<()> {
        let key = key_of(call)?;
        py.detach(|| self.inner.abandon(key));
        Ok(())
    }

    fn queued_rows(&self, endpoint: &str) -> u32 {
        self.inner.queued_rows(endpoint)
    }

    fn set_endpoints(&self, py: Python<'_>, experts: Vec<String>, aggregators: Vec<String>) {
        py.detach(|| self.inner.set_endpoints(&experts, &aggregators));
    }

    /// Of the combiner inside; None where there is none.
    fn combiner_figures(&self) -> Option<Figures> {
        self.inner.combiner_figures().map(figures)
    }

    fn close(&self, py: Python<'_>) {
        py.detach(|| self.inner.close());
    }
}

impl Drop for Router {
    /// The caretaker may be waiting for the interpreter's lock, which whoever drops this holds.
    fn drop(&mut self) {
        Python::try_attach(|py| py.detach(|| self.inner.close()));
    }
}

pub fn figures((tally, open): (Tally, usize)) -> Figures {
    let Tally {
        combined,
        duplicates,
        refused,
        missing,
        failed,
    } = tally;
    (combined, open, duplicates, refused, missing, failed)
}

fn key_of(call: &Bound<'_, PyAny>) -> PyResult<Key> {
    let py = call.py();
    Ok(Key {
        call_id: call.getattr(intern!(py, "call_id"))?.extract()?,
        layer: call.getattr(intern!(py, "layer"))?.extract()?,
    })
}

fn targets_of(given: &Bound<'_, PyAny>) -> PyResult<Vec<(u32, String)>> {
    let py = given.py();
    given
        .try_iter()?
        .map(|target| {
            let target = target?;
            let part = target.getattr(intern!(py, "part"))?.extract()?;
            Ok((part, target.getattr(intern!(py, "endpoint"))?.extract()?))
        })
        .collect()
}

/// The call without its parts unless they are needed, for the plan or to be sent.
fn call_of<'py>(
    call: &Bound<'py, PyAny>,
    key: Key,
    with_parts: bool,
    kept: &mut Vec<Bound<'py, PyAny>>,
) -> PyResult<Call> {
    let py = call.py();
    let parts = if with_parts {
        let given = call.getattr(intern!(py, "parts"))?;
        let given = given.cast::<PyTuple>()?;
        let parts = given.iter().map(|part| part_of(&part, kept));
        parts.collect::<PyResult<Vec<_>>>()?
    } else {
        vec![]
    };
    let partial_dtype = call.getattr(intern!(py, "partial_dtype"))?;
    let hidden = view(&call.getattr(intern!(py, "hidden"))?, 2, kept)?;
    Ok(Call {
        key,
        hidden,
        parts,
        policy: policy_of(&call.getattr(intern!(py, "policy"))?)?,
        deadline: call.getattr(intern!(py, "deadline"))?.extract()?,
        partial_dtype: if partial_dtype.is_none() {
            Dtype::Unspecified
        } else {
            dtype_of(&partial_dtype)?
        },
    })
}

fn part_of<'py>(given: &Bound<'py, PyAny>, kept: &mut Vec<Bound<'py, PyAny>>) -> PyResult<Part> {
    let py = given.py();
    let mut vector = |name| view(&given.getattr(name)?, 1, kept);
    let part = Part {
        part: given.getattr(intern!(py, "part"))?.extract()?,
        token_index: vector(intern!(py, "token_index"))?,
        slot_rows: vector(intern!(py, "slot_rows"))?,
        slot_experts: vector(intern!(py, "slot_experts"))?,
        slot_weights: vector(intern!(py, "slot_weights"))?,
    };
    if part.token_index.dtype != Dtype::Int32 {
        let got = crate::tensors::name(part.token_index.dtype);
        return Err(PyValueError::new_err(format!(
            "token_index of part {}: got {got}, want int32",
            part.part
        )));
    }
    Ok(part)
}

/// moe.wire.port.MissingPolicy.
pub fn policy_of(given: &Bound<'_, PyAny>) -> PyResult<MissingPolicy> {
    let value = given.getattr(intern!(given.py(), "value"))?;
    match value.extract::<&str>()? {
        "wait" => Ok(MissingPolicy::Wait),
        "renormalise" => Ok(MissingPolicy::Renormalise),
        "fail" => Ok(MissingPolicy::Fail),
        other => Err(PyValueError::new_err(format!(
            "policy: got {other}, want wait, renormalise or fail"
        ))),
    }
}

fn dispatches(call: &Call, targets: Vec<(u32, String)>) -> PyResult<Vec<Dispatch>> {
    let by_part: HashMap<u32, &Part> = call.parts.iter().map(|part| (part.part, part)).collect();
    targets
        .into_iter()
        .map(|(number, endpoint)| {
            let part = by_part
                .get(&number)
                .ok_or_else(|| PyKeyError::new_err(number))?;
            let request = request(call, part)?;
            Ok(Dispatch { endpoint, request })
        })
        .collect()
}

fn request(call: &Call, part: &Part) -> PyResult<DispatchRequest> {
    // SAFETY: `exchange` holds the tensors until it returns, and everything is copied out of them before.
    unsafe {
        let rows = Tensor {
            dtype: call.hidden.dtype as i32,
            shape: vec![part.token_index.len as u32, call.hidden.width as u32],
            data: gathered(&call.hidden, part)?,
        };
        Ok(DispatchRequest {
            call_id: call.key.call_id,
            layer: call.key.layer,
            part: part.part,
            timeout_us: timeout_us(Some(call.deadline)),
            aggregator: String::new(),
            rows: Some(rows),
            slot_rows: Some(part.slot_rows.vector_message()),
            slot_experts: Some(part.slot_experts.vector_message()),
            slot_weights: Some(part.slot_weights.vector_message()),
            partial_dtype: call.partial_dtype as i32,
        })
    }
}

/// The rows of a part. An index that rises strictly and is as long as the rows are many is all of them.
unsafe fn gathered(hidden: &View, part: &Part) -> PyResult<Bytes> {
    let all = hidden.bytes();
    if part.token_index.len == hidden.len {
        return Ok(Bytes::copy_from_slice(all));
    }
    let width = hidden.width * item_size(hidden.dtype);
    let mut rows = Vec::with_capacity(part.token_index.len * width);
    for token in part.token_index.int32() {
        let at = usize::try_from(token).ok().filter(|&at| at < hidden.len);
        let at = at.ok_or_else(|| {
            PyValueError::new_err(format!(
                "token_index of part {}: got {token}, want 0 to {}",
                part.part,
                hidden.len as i64 - 1
            ))
        })?;
        rows.extend_from_slice(&all[at * width..(at + 1) * width]);
    }
    Ok(rows.into())
}

/// As moe.wire.plans.plan_of.
fn plan(call: &Call) -> Plan {
    let mut parts: Vec<PlannedPart> = call
        .parts
        .iter()
        .map(|part| PlannedPart {
            part: part.part,
            // SAFETY: as in `request`.
            token_index: unsafe { part.token_index.int32() },
            row_weights: (call.policy == MissingPolicy::Renormalise).then(|| row_weights(part)),
        })
        .collect();
    parts.sort_by_key(|part| part.part);
    Plan {
        key: call.key,
        tokens: call.hidden.len,
        hidden: call.hidden.width,
        dtype: call.hidden.dtype,
        policy: call.policy,
        deadline: Some(call.deadline),
        parts,
    }
}

/// Each row's routing weights in this part, summed in the order of its slots; only `renormalise` pays for them.
fn row_weights(part: &Part) -> Vec<f32> {
    let mut sums = vec![0f32; part.token_index.len];
    // SAFETY: as in `request`.
    let (rows, weights) = unsafe { (part.slot_rows.int32(), part.slot_weights.bytes()) };
    for (slot, row) in rows.into_iter().take(part.slot_weights.len).enumerate() {
        if let Some(sum) = usize::try_from(row).ok().and_then(|row| sums.get_mut(row)) {
            *sum += value(weights, slot, part.slot_weights.dtype);
        }
    }
    sums
}
