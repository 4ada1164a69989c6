//! Cuts a layer's routing into the parts of a layer call; the counterpart of moe.router.dispatch.

use crate::api::tensor::Dtype;
use crate::sums::value;
use crate::tensors::item_size;

/// Which part each expert is in; ids from the table's end on are dropped slots.
#[derive(Clone, Copy)]
pub struct Routing<'a> {
    /// int64 [tokens, topk], row-major.
    pub index: &'a [u8],
    pub topk: usize,
    /// [tokens, topk], row-major.
    pub weights: &'a [u8],
    pub weights_dtype: Dtype,
    pub part_of_expert: &'a [u32],
}

/// What one expert group gets; see moe.wire.port.Part.
#[derive(Debug, Default, PartialEq)]
pub struct Lot {
    pub part: u32,
    pub token_index: Vec<i32>,
    pub slot_rows: Vec<i32>,
    pub slot_experts: Vec<i32>,
    pub slot_weights: Vec<u8>,
}

/// The parts in ascending order; slots within a part by row, and within a row in the order of `index`.
///
/// The error names a slot that can't be.
pub fn cut(routing: Routing<'_>) -> Result<Vec<Lot>, String> {
    let width = item_size(routing.weights_dtype);
    let mut place: Vec<Option<usize>> = vec![];
    let mut lots: Vec<Lot> = vec![];
    let slots = routing
        .index
        .chunks_exact(8)
        .zip(routing.weights.chunks_exact(width));
    for (slot, (expert, weight)) in slots.enumerate() {
        let expert = i64::from_le_bytes(expert.try_into().unwrap());
        let Ok(at) = usize::try_from(expert) else {
            return Err(format!("index: got expert {expert}, want 0 or more"));
        };
        let Some(&part) = routing.part_of_expert.get(at) else {
            continue;
        };
        if place.len() <= part as usize {
            place.resize(part as usize + 1, None);
        }
        let lot = *place[part as usize].get_or_insert_with(|| {
            lots.push(Lot {
                part,
                ..Lot::default()
            });
            lots.len() - 1
        });
        let (lot, row) = (&mut lots[lot], (slot / routing.topk) as i32);
        if lot.token_index.last() != Some(&row) {
            lot.token_index.push(row);
        }
        lot.slot_rows.push(lot.token_index.len() as i32 - 1);
        lot.slot_experts.push(expert as i32);
        lot.slot_weights.extend_from_slice(weight);
    }
    lots.sort_unstable_by_key(|lot| lot.part);
    Ok(lots)
}

impl Lot {
    /// Each row's routing weights, summed in the order of its slots.
    pub fn row_weights(&self, dtype: Dtype) -> Vec<f32> {
        let mut sums = vec![0f32; self.token_index.len()];
        for (slot, &row) in self.slot_rows.iter().enumerate() {
            sums[row as usize] += value(&self.slot_weights, slot, dtype);
        }
        sums
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PART_OF_EXPERT: [u32; 6] = [0, 0, 1, 2, 2, 2];

    fn lots(index: &[i64], topk: usize) -> Result<Vec<Lot>, String> {
        let index: Vec<u8> = index.iter().flat_map(|id| id.to_le_bytes()).collect();
        let weights: Vec<u8> = (1..=index.len() / 8)
            .flat_map(|slot| (slot as f32).to_le_bytes())
            .collect();
        cut(Routing {
            index: &index,
            topk,
            weights: &weights,
            weights_dtype: Dtype::Float32,
            part_of_expert: &PART_OF_EXPERT,
        })
    }

    fn weights(lot: &Lot) -> Vec<f32> {
        let fours = lot.slot_weights.chunks_exact(4);
        fours
            .map(|four| f32::from_le_bytes(four.try_into().unwrap()))
            .collect()
    }

    #[test]
    fn each_group_gets_its_rows_once_with_the_slots_in_order() {
        let lots = lots(&[1, 3, 0, 1, 5, 4], 2).unwrap();
        let [first, second] = &lots[..] else {
            panic!("{lots:?}")
        };
        assert_eq!((first.part, second.part), (0, 2));
        assert_eq!(first.token_index, [0, 1]);
        assert_eq!(first.slot_rows, [0, 1, 1]);
        assert_eq!(first.slot_experts, [1, 0, 1]);
        assert_eq!(weights(first), [1.0, 3.0, 4.0]);
        assert_eq!(second.token_index, [0, 2]);
        assert_eq!(second.slot_rows, [0, 1, 1]);
        assert_eq!(second.slot_experts, [3, 5, 4]);
        assert_eq!(weights(second), [2.0, 5.0, 6.0]);
        assert_eq!(first.row_weights(Dtype::Float32), [1.0, 7.0]);
    }

    #[test]
    fn dropped_slots_are_not_sent_and_negative_ones_refused() {
        let lots_of = lots(&[6, 2, 6, 6, 99, 6], 2).unwrap();
        assert_eq!(lots_of.len(), 1);
        assert_eq!(
            (lots_of[0].part, &lots_of[0].token_index[..]),
            (1, &[0][..])
        );
        assert!(lots(&[6, 7], 2).unwrap().is_empty());
        assert!(lots(&[], 2).unwrap().is_empty());
        assert!(lots(&[0, -1], 2).unwrap_err().contains("expert -1"));
    }
}
