//! The combiner by itself, for the table of tests that both executions of its policy have to pass.

use std::sync::Mutex;

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::combiner::{Combiner, Event, Key, Plan, PlannedPart};
use crate::python::memory::{dtype_of, rows_of, view, Memory};
use crate::python::router::{figures, policy_of, Figures};
use crate::python::settings::limits_of;
use crate::tensors::name;

/// kind, owner, call id, layer, then what the kind has: rows and missing parts; part and text; text and deadline.
type Told = (
    &'static str,
    u64,
    (u64, u32),
    Option<Py<Memory>>,
    Vec<(u32, String, usize)>,
    u32,
    String,
    bool,
);

#[pyclass(frozen, weakref, module = "moe_wire_native")]
pub struct Policy {
    combiner: Mutex<Combiner>,
}

#[pymethods]
impl Policy {
    #[new]
    fn new(limits: &Bound<'_, PyAny>) -> PyResult<Self> {
        Ok(Policy {
            combiner: Mutex::new(Combiner::new(limits_of(limits)?)),
        })
    }

    fn plan(&self, py: Python<'_>, owner: u64, plan: &Bound<'_, PyAny>) -> PyResult<Vec<Told>> {
        let plan = plan_of(plan)?;
        self.act(py, |combiner| combiner.plan(owner, plan))
    }

    fn part(
        &self,
        py: Python<'_>,
        key: (u64, u32),
        part: u32,
        rows: &Bound<'_, PyAny>,
        now: f64,
    ) -> PyResult<Vec<Told>> {
        let rows = rows_of(rows)?;
        self.act(py, |combiner| combiner.part(key_of(key), part, rows, now))
    }

    fn broken_part(
        &self,
        py: Python<'_>,
        key: (u64, u32),
        part: u32,
        reason: String,
    ) -> PyResult<Vec<Told>> {
        self.act(py, |combiner| {
            combiner.broken_part(key_of(key), part, reason)
        })
    }

    fn give_up(
        &self,
        py: Python<'_>,
        key: (u64, u32),
        part: u32,
        reason: String,
    ) -> PyResult<Vec<Told>> {
        self.act(py, |combiner| combiner.give_up(key_of(key), part, reason))
    }

    fn abandon(&self, key: (u64, u32)) {
        self.combiner.lock().unwrap().abandon(key_of(key));
    }

    fn forget_owner(&self, owner: u64) {
        self.combiner.lock().unwrap().forget_owner(owner);
    }

    fn source_lost(&self, py: Python<'_>, instance: &str) -> PyResult<Vec<Told>> {
        self.act(py, |combiner| combiner.source_lost(instance))
    }

    fn expire(&self, py: Python<'_>, now: f64) -> PyResult<Vec<Told>> {
        self.act(py, |combiner| combiner.expire(now))
    }

    fn next_deadline(&self) -> Option<f64> {
        self.combiner.lock().unwrap().next_deadline()
    }

    fn held_bytes(&self) -> usize {
        self.combiner.lock().unwrap().held_bytes()
    }

    fn figures(&self) -> Figures {
        let combiner = self.combiner.lock().unwrap();
        figures((combiner.tally(), combiner.open_calls()))
    }
}

impl Policy {
    fn act(
        &self,
        py: Python<'_>,
        act: impl FnOnce(&mut Combiner) -> Vec<Event>,
    ) -> PyResult<Vec<Told>> {
        let events = act(&mut self.combiner.lock().unwrap());
        events.into_iter().map(|event| told(py, event)).collect()
    }
}

fn key_of((call_id, layer): (u64, u32)) -> Key {
    Key { call_id, layer }
}

fn told(py: Python<'_>, event: Event) -> PyResult<Told> {
    let pair = |key: Key| (key.call_id, key.layer);
    Ok(match event {
        Event::Answered {
            owner,
            key,
            rows,
            missing,
        } => {
            let rows = Py::new(py, Memory::new(rows))?;
            let missing = missing.into_iter().map(|m| (m.part, m.reason, m.rows));
            (
                "answered",
                owner,
                pair(key),
                Some(rows),
                missing.collect(),
                0,
                String::new(),
                false,
            )
        }
        Event::PartRefused {
            owner,
            key,
            part,
            reason,
        } => (
            "part_refused",
            owner,
            pair(key),
            None,
            vec![],
            part,
            reason,
            false,
        ),
        Event::SourceLost { owner, instance } => (
            "source_lost",
            owner,
            (0, 0),
            None,
            vec![],
            0,
            instance,
            false,
        ),
        Event::Rejected {
            owner,
            key,
            message,
            deadline,
        } => (
            "rejected",
            owner,
            pair(key),
            None,
            vec![],
            0,
            message,
            deadline,
        ),
    })
}

/// moe.wire.combining.CallPlan. A token index of another type is told as the wire tells it: it can't be read.
fn plan_of(given: &Bound<'_, PyAny>) -> PyResult<Plan> {
    let py = given.py();
    let parts = given.getattr(intern!(py, "parts"))?;
    let parts = parts.cast::<PyTuple>()?.iter();
    Ok(Plan {
        key: key_of(given.getattr("key")?.extract()?),
        tokens: given.getattr("tokens")?.extract()?,
        hidden: given.getattr("hidden")?.extract()?,
        dtype: dtype_of(&given.getattr("dtype")?)?,
        policy: policy_of(&given.getattr("policy")?)?,
        deadline: given.getattr("deadline")?.extract()?,
        parts: parts
            .map(|part| planned_of(&part))
            .collect::<PyResult<_>>()?,
    })
}

fn planned_of(given: &Bound<'_, PyAny>) -> PyResult<PlannedPart> {
    let mut kept = vec![];
    let index = view(&given.getattr("token_index")?, 1, &mut kept)?;
    let weights = given.getattr("row_weights")?;
    let weights = if weights.is_none() {
        None
    } else {
        Some(rows_of(&weights)?)
    };
    let wrong = |error: String| pyo3::exceptions::PyValueError::new_err(error);
    if index.dtype != crate::api::tensor::Dtype::Int32 {
        return Err(wrong(format!(
            "token_index: got {}, want int32",
            name(index.dtype)
        )));
    }
    Ok(PlannedPart {
        part: given.getattr("part")?.extract()?,
        // SAFETY: `kept` holds the tensor.
        token_index: unsafe { index.int32() },
        row_weights: weights
            .map(|weights| weights.float32("row_weights"))
            .transpose()
            .map_err(wrong)?,
    })
}
