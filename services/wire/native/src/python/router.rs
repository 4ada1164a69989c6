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
use crate::routing::{cut, Lot, Routing};
use crate::sums::{largest, value};
use crate::tensors::{int32_message, is_float, item_size, name};

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

    /// See moe.wire.port.RoutedWire.exchange_routed. ValueError for tensors that don't fit together.
    fn exchange_routed(
        &self,
        py: Python<'_>,
        call: &Bound<'_, PyAny>,
        places: &Places,
        until: f64,
    ) -> PyResult<Option<Answer>> {
        let mut kept = vec![];
        let routed = routed_of(call, places, &mut kept)?;
        let aggregator: Option<String> = call.getattr(intern!(py, "aggregator"))?.extract()?;
        let router = &self.inner;
        let outcome = py.detach(move || -> PyResult<_> {
            // SAFETY: `kept` holds the tensors until this returns.
            let Some((lots, dispatches)) = (unsafe { routed.cut(places) })? else {
                return Ok(None);
            };
            Ok(Some(router.exchange(
                routed.key,
                || routed.plan(lots),
                dispatches,
                aggregator.as_deref(),
                routed.deadline,
                until,
            )))
        })?;
        outcome.map(|outcome| Answer::of(py, outcome)).transpose()
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

/// Which part each expert is in, and the endpoint that each part goes to.
#[pyclass(frozen, module = "moe_wire_native")]
pub struct Places {
    part_of_expert: Vec<u32>,
    endpoints: Vec<String>,
}

#[pymethods]
impl Places {
    /// ValueError for a part without an endpoint.
    #[new]
    fn new(part_of_expert: Vec<u32>, endpoints: Vec<String>) -> PyResult<Self> {
        match part_of_expert
            .iter()
            .find(|&&part| part as usize >= endpoints.len())
        {
            Some(part) => Err(PyValueError::new_err(format!(
                "part_of_expert: got part {part}, want 0 to {} as there are endpoints",
                endpoints.len() as i64 - 1
            ))),
            None => Ok(Places {
                part_of_expert,
                endpoints,
            }),
        }
    }
}

/// A layer call whose routing is yet to be cut into parts; where its tensors lie, while the caller holds them.
struct Routed {
    key: Key,
    hidden: View,
    index: View,
    weights: View,
    experts: usize,
    policy: MissingPolicy,
    deadline: f64,
    partial_dtype: Dtype,
}

impl Routed {
    /// The parts, and what goes out for each; None when no slot is sent, or a row can't be (it is not finite).
    ///
    /// # Safety
    /// The tensors are alive and nobody writes to them.
    unsafe fn cut(&self, places: &Places) -> PyResult<Option<(Vec<Lot>, Vec<Dispatch>)>> {
        let hidden = self.hidden.bytes();
        if !largest(hidden, self.hidden.dtype).is_finite() {
            return Ok(None);
        }
        let routing = Routing {
            index: self.index.bytes(),
            topk: self.index.width,
            weights: self.weights.bytes(),
            weights_dtype: self.weights.dtype,
            part_of_expert: &places.part_of_expert[..self.experts],
        };
        let lots = cut(routing).map_err(PyValueError::new_err)?;
        if lots.is_empty() {
            return Ok(None);
        }
        let timeout_us = timeout_us(Some(self.deadline));
        let dispatches = lots.iter().map(|lot| Dispatch {
            endpoint: places.endpoints[lot.part as usize].clone(),
            request: self.request(hidden, lot, timeout_us),
        });
        let dispatches = dispatches.collect();
        Ok(Some((lots, dispatches)))
    }

    /// The rows of a lot are below the tensor's: they were counted along it.
    fn request(&self, hidden: &[u8], lot: &Lot, timeout_us: u64) -> DispatchRequest {
        let width = self.hidden.width * item_size(self.hidden.dtype);
        let data = if lot.token_index.len() == self.hidden.len {
            Bytes::copy_from_slice(hidden)
        } else {
            let mut rows = Vec::with_capacity(lot.token_index.len() * width);
            for &row in &lot.token_index {
                rows.extend_from_slice(&hidden[row as usize * width..(row as usize + 1) * width]);
            }
            rows.into()
        };
        DispatchRequest {
            call_id: self.key.call_id,
            layer: self.key.layer,
            part: lot.part,
            timeout_us,
            aggregator: String::new(),
            rows: Some(Tensor {
                dtype: self.hidden.dtype as i32,
                shape: vec![lot.token_index.len() as u32, self.hidden.width as u32],
                data,
            }),
            slot_rows: Some(int32_message(&lot.slot_rows)),
            slot_experts: Some(int32_message(&lot.slot_experts)),
            slot_weights: Some(Tensor {
                dtype: self.weights.dtype as i32,
                shape: vec![lot.slot_rows.len() as u32],
                data: Bytes::copy_from_slice(&lot.slot_weights),
            }),
            partial_dtype: self.partial_dtype as i32,
        }
    }

    fn plan(&self, lots: Vec<Lot>) -> Plan {
        let weighted = self.policy == MissingPolicy::Renormalise;
        let parts = lots.into_iter().map(|lot| PlannedPart {
            part: lot.part,
            row_weights: weighted.then(|| lot.row_weights(self.weights.dtype)),
            token_index: lot.token_index,
        });
        Plan {
            key: self.key,
            tokens: self.hidden.len,
            hidden: self.hidden.width,
            dtype: self.hidden.dtype,
            policy: self.policy,
            deadline: Some(self.deadline),
            parts: parts.collect(),
        }
    }
}

fn routed_of<'py>(
    call: &Bound<'py, PyAny>,
    places: &Places,
    kept: &mut Vec<Bound<'py, PyAny>>,
) -> PyResult<Routed> {
    let py = call.py();
    let hidden = view(&call.getattr(intern!(py, "hidden"))?, 2, kept)?;
    let index = view(&call.getattr(intern!(py, "index"))?, 2, kept)?;
    let weights = view(&call.getattr(intern!(py, "weights"))?, 2, kept)?;
    let alike = index.len == hidden.len && weights.len == index.len && weights.width == index.width;
    if !alike || index.dtype != Dtype::Int64 || !is_float(weights.dtype) || index.width == 0 {
        let told = |of: &View| format!("{} [{}, {}]", name(of.dtype), of.len, of.width);
        return Err(PyValueError::new_err(format!(
            "index and weights: got {} and {} for {} rows, want int64 and floats, [rows, k] both",
            told(&index),
            told(&weights),
            hidden.len
        )));
    }
    let experts: usize = call.getattr(intern!(py, "experts"))?.extract()?;
    if experts > places.part_of_expert.len() {
        return Err(PyValueError::new_err(format!(
            "experts: got {experts}, places are known of {}",
            places.part_of_expert.len()
        )));
    }
    let partial_dtype = call.getattr(intern!(py, "partial_dtype"))?;
    Ok(Routed {
        key: key_of(call)?,
        hidden,
        index,
        weights,
        experts,
        policy: policy_of(&call.getattr(intern!(py, "policy"))?)?,
        deadline: call.getattr(intern!(py, "deadline"))?.extract()?,
        partial_dtype: partial_dtype_of(&partial_dtype)?,
    })
}

/// None stands for the rows' own.
fn partial_dtype_of(given: &Bound<'_, PyAny>) -> PyResult<Dtype> {
    if given.is_none() {
        return Ok(Dtype::Unspecified);
    }
    dtype_of(given)
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
        partial_dtype: partial_dtype_of(&partial_dtype)?,
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
