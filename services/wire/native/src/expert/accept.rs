//! Dispatches are read and checked whole before they wait; the same checks as moe.wire.dispatches.read_dispatch, in the
//! same order. A fault names the field, what came and what is wanted.

use std::collections::BTreeMap;

use crate::api::expert::DispatchRequest;
use crate::api::tensor::Dtype;
use crate::combiner::Key;
use crate::names::LONGEST_AGGREGATOR_NAME;
use crate::queue::Item;
use crate::tensors::{dtype_of, is_float, item_size, name, Rows};

/// Room for what surrounds a tensor in a message.
pub const ENVELOPE_BYTES: usize = 1024;
/// Numbers that a message shows at most.
const SHOWN: usize = 8;

/// What an expert accepts; as moe.wire.port.ExpertLimits.
#[derive(Clone, Debug)]
pub struct Limits {
    pub hidden: usize,
    pub dtype: Dtype,
    /// Layer -> the ids held there.
    pub experts_by_layer: BTreeMap<u32, Vec<i32>>,
    /// Rows in one dispatch.
    pub max_rows: usize,
    /// Rows waiting, beyond which dispatches are OVERLOADED.
    pub max_queued_rows: usize,
    /// Rows joined into one batch.
    pub max_batch_rows: usize,
}

impl Limits {
    /// The ids in order, each once: what the checks below stand on.
    pub(super) fn ordered(mut self) -> Limits {
        for ids in self.experts_by_layer.values_mut() {
            ids.sort_unstable();
            ids.dedup();
        }
        self
    }
}

/// The work that a message asks for. stream: the router's, which gets the receipt.
pub fn read_dispatch(
    message: DispatchRequest,
    limits: &Limits,
    max_message_bytes: usize,
    now: f64,
    stream: u64,
) -> Result<Item, String> {
    let rows = Rows::read(message.rows, "rows")?;
    rows.want("rows", &[limits.dtype], &[None, Some(limits.hidden)])?;
    if !(1..=limits.max_rows).contains(&rows.len()) {
        let (got, most) = (rows.len(), limits.max_rows);
        return Err(format!(
            "rows: got {got} rows, want 1 to {most} in a dispatch"
        ));
    }
    let slot_rows = Rows::read(message.slot_rows, "slot_rows")?;
    slot_rows.want("slot_rows", &[Dtype::Int32], &[None])?;
    let slots = [Some(slot_rows.len())];
    let slot_experts = Rows::read(message.slot_experts, "slot_experts")?;
    slot_experts.want("slot_experts", &[Dtype::Int32], &slots)?;
    let slot_weights = Rows::read(message.slot_weights, "slot_weights")?;
    slot_weights.want("slot_weights", &[Dtype::Float32, limits.dtype], &slots)?;
    let held = check_experts(&slot_experts, message.layer, limits)?;
    check_slot_rows(&slot_rows, rows.len(), held)?;
    let named = message.aggregator.chars().count();
    if !(1..=LONGEST_AGGREGATOR_NAME).contains(&named) {
        return Err(format!(
            "aggregator: got {named} characters, want the name of an aggregator, 1 to {LONGEST_AGGREGATOR_NAME}"
        ));
    }
    let partial_dtype = partial_dtype(message.partial_dtype, rows.dtype)?;
    check_partial_size(&rows, partial_dtype, max_message_bytes)?;
    Ok(Item {
        stream,
        key: Key {
            call_id: message.call_id,
            layer: message.layer,
        },
        part: message.part,
        aggregator: message.aggregator,
        rows,
        slot_rows,
        slot_experts,
        slot_weights,
        partial_dtype,
        deadline: (message.timeout_us > 0).then(|| now + message.timeout_us as f64 / 1e6),
    })
}

/// Returns how many experts are held in the layer.
fn check_experts(slot_experts: &Rows, layer: u32, limits: &Limits) -> Result<usize, String> {
    let Some(held) = limits.experts_by_layer.get(&layer) else {
        let layers = ranges(limits.experts_by_layer.keys().copied());
        return Err(format!("layer: got {layer}, want one of {layers}"));
    };
    let strangers = numbers(slot_experts).filter(|id| held.binary_search(id).is_err());
    match strangers.min() {
        None => Ok(held.len()),
        Some(stranger) => Err(format!(
            "slot_experts: got {stranger}, want experts that are held here in layer {layer}: {}",
            ranges(held.iter().copied())
        )),
    }
}

/// Each row needs a slot, or it had not been sent; and can't have more slots than there are experts.
fn check_slot_rows(slot_rows: &Rows, rows: usize, experts: usize) -> Result<(), String> {
    let (slots, most) = (slot_rows.len(), rows.saturating_mul(experts));
    if !(rows..=most).contains(&slots) {
        return Err(format!(
            "slot_rows: got {slots} slots for {rows} rows, want {rows} to {most}"
        ));
    }
    let (mut last, mut rises) = (0i64, true);
    for (at, row) in numbers(slot_rows).map(i64::from).enumerate() {
        rises &= if at == 0 {
            row == 0
        } else {
            (0..=1).contains(&(row - last))
        };
        last = row;
    }
    if rises && last == rows as i64 - 1 {
        return Ok(());
    }
    let shown: Vec<i32> = numbers(slot_rows).take(SHOWN).collect();
    let more = if slots > SHOWN {
        format!(" and {} more", slots - SHOWN)
    } else {
        String::new()
    };
    Err(format!(
        "slot_rows: got {shown:?}{more}, want not decreasing from 0 to {} with every row named",
        rows - 1
    ))
}

fn partial_dtype(value: i32, default: Dtype) -> Result<Dtype, String> {
    if value == Dtype::Unspecified as i32 {
        return Ok(default);
    }
    let dtype = dtype_of(value, "partial_dtype")?;
    if is_float(dtype) {
        return Ok(dtype);
    }
    Err(format!(
        "partial_dtype: got {}, want float32, bfloat16 or float16",
        name(dtype)
    ))
}

/// A partial that no message can carry would break the stream that carries everybody's.
fn check_partial_size(rows: &Rows, dtype: Dtype, max_message_bytes: usize) -> Result<(), String> {
    let elements = rows.data.len() / item_size(rows.dtype);
    let (size, most) = (
        elements * item_size(dtype),
        max_message_bytes.saturating_sub(ENVELOPE_BYTES),
    );
    if size <= most {
        return Ok(());
    }
    Err(format!(
        "rows: the partial of {} rows in {} takes {size} bytes, the bound is {most}",
        rows.len(),
        name(dtype)
    ))
}

/// The elements of an int32 vector that was checked.
pub(super) fn numbers(rows: &Rows) -> impl Iterator<Item = i32> + '_ {
    rows.data
        .chunks_exact(4)
        .map(|four| i32::from_le_bytes([four[0], four[1], four[2], four[3]]))
}

/// Numbers for a message, which ascend: at most eight of them.
fn ranges<N: std::fmt::Display>(numbers: impl ExactSizeIterator<Item = N>) -> String {
    let all = numbers.len();
    let (mut shown, mut last) = (vec![], String::new());
    for (at, number) in numbers.enumerate() {
        if at < SHOWN {
            shown.push(number.to_string());
        }
        last = number.to_string();
    }
    let shown = shown.join(", ");
    if all <= SHOWN {
        shown
    } else {
        format!("{shown}, … {last} ({all} in all)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::tensor::Tensor;
    use crate::tensors::int32_message;

    fn limits() -> Limits {
        Limits {
            hidden: 2,
            dtype: Dtype::Bfloat16,
            experts_by_layer: BTreeMap::from([(3, vec![5, 4])]),
            max_rows: 4,
            max_queued_rows: 100,
            max_batch_rows: 100,
        }
        .ordered()
    }

    fn floats(dtype: Dtype, shape: &[u32]) -> Option<Tensor> {
        let elements = shape.iter().product::<u32>() as usize;
        Some(Tensor {
            dtype: dtype as i32,
            shape: shape.to_vec(),
            data: vec![0; elements * item_size(dtype)].into(),
        })
    }

    /// Two rows, the first in both experts.
    fn message() -> DispatchRequest {
        DispatchRequest {
            call_id: 7,
            layer: 3,
            part: 1,
            aggregator: "a".into(),
            timeout_us: 500_000,
            rows: floats(Dtype::Bfloat16, &[2, 2]),
            slot_rows: Some(int32_message(&[0, 0, 1])),
            slot_experts: Some(int32_message(&[4, 5, 4])),
            slot_weights: floats(Dtype::Float32, &[3]),
            partial_dtype: 0,
        }
    }

    fn read(message: DispatchRequest) -> Result<Item, String> {
        read_dispatch(message, &limits(), 4096, 10.0, 1)
    }

    #[test]
    fn what_fits_is_work_with_the_rows_own_type_and_a_deadline_on_this_clock() {
        let item = read(message()).unwrap();
        assert_eq!(
            (item.partial_dtype, item.deadline),
            (Dtype::Bfloat16, Some(10.5))
        );
        let endless = DispatchRequest {
            timeout_us: 0,
            ..message()
        };
        assert_eq!(read(endless).unwrap().deadline, None);
    }

    #[test]
    fn what_does_not_fit_is_named_by_its_field() {
        type Spoil = fn(&mut DispatchRequest);
        let cases: [(&str, Spoil); 16] = [
            ("rows.dtype", |m| m.rows = None),
            ("rows.dtype: got float32", |m| {
                m.rows = floats(Dtype::Float32, &[2, 2])
            }),
            ("rows.shape", |m| m.rows = floats(Dtype::Bfloat16, &[2, 3])),
            ("rows: got 5 rows", |m| {
                m.rows = floats(Dtype::Bfloat16, &[5, 2])
            }),
            ("rows: got 0 rows", |m| {
                m.rows = floats(Dtype::Bfloat16, &[0, 2])
            }),
            ("slot_rows.dtype", |m| {
                m.slot_rows = floats(Dtype::Float32, &[3])
            }),
            ("slot_experts.shape", |m| {
                m.slot_experts = Some(int32_message(&[4, 5]))
            }),
            ("slot_weights.dtype: got float16", |m| {
                m.slot_weights = floats(Dtype::Float16, &[3])
            }),
            ("layer: got 2, want one of 3", |m| m.layer = 2),
            ("slot_experts: got -1", |m| {
                m.slot_experts = Some(int32_message(&[4, -1, 9]))
            }),
            ("slot_rows: got [0, 1, 0]", |m| {
                m.slot_rows = Some(int32_message(&[0, 1, 0]))
            }),
            ("slot_rows: got [1, 1, 1]", |m| {
                m.slot_rows = Some(int32_message(&[1, 1, 1]))
            }),
            ("slot_rows: got [0, 0, 0]", |m| {
                m.slot_rows = Some(int32_message(&[0, 0, 0]))
            }),
            ("aggregator: got 0", |m| m.aggregator.clear()),
            ("partial_dtype: got int32", |m| m.partial_dtype = 4),
            ("partial_dtype: unknown dtype 99", |m| m.partial_dtype = 99),
        ];
        for (want, spoil) in cases {
            let mut spoilt = message();
            spoil(&mut spoilt);
            let fault = read(spoilt).expect_err(want);
            assert!(fault.starts_with(want), "{fault}");
        }
    }

    #[test]
    fn more_slots_than_a_row_has_experts_and_too_large_a_partial_are_refused() {
        let mut crowded = message();
        crowded.slot_rows = Some(int32_message(&[0, 0, 0, 1, 1]));
        crowded.slot_experts = Some(int32_message(&[4; 5]));
        crowded.slot_weights = floats(Dtype::Float32, &[5]);
        assert!(read(crowded).unwrap_err().contains("want 2 to 4"));
        let mut wide = message();
        wide.partial_dtype = 1;
        let fault = read_dispatch(wide, &limits(), ENVELOPE_BYTES + 15, 0.0, 1).unwrap_err();
        assert!(fault.contains("takes 16 bytes, the bound is 15"), "{fault}");
    }
}
