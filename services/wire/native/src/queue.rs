//! An expert's queue: bounded in rows, joined by layer; as moe.wire.expert_queue. Time is passed in, in seconds.

use std::collections::{BTreeMap, VecDeque};

use crate::api::tensor::Dtype;
use crate::combiner::Key;
use crate::tensors::Rows;

const UNKNOWN_WAIT_S: f64 = 0.05;
const SHORTEST_WAIT_S: f64 = 0.001;
const LONGEST_WAIT_S: f64 = 5.0;
/// Weight of what was known of the speed when a new batch is measured: about the last five batches count.
const MEMORY: f64 = 0.8;

/// One accepted dispatch. stream: the number of the router's stream, which gets the receipt.
#[derive(Clone, Debug)]
pub struct Item {
    pub stream: u64,
    pub key: Key,
    pub part: u32,
    pub aggregator: String,
    pub rows: Rows,
    pub slot_rows: Rows,
    pub slot_experts: Rows,
    pub slot_weights: Rows,
    pub partial_dtype: Dtype,
    pub deadline: Option<f64>,
}

impl Item {
    fn is_expired(&self, now: f64) -> bool {
        self.deadline.is_some_and(|deadline| deadline <= now)
    }
}

#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    pub overloaded: u64,
    pub expired: u64,
    pub invalid: u64,
    /// Items taken for a kernel call, and the seconds that they waited, added up.
    pub dispatches: u64,
    pub waited_s: f64,
}

/// place: how many came before it. since: when it came.
struct Waiting {
    place: u64,
    since: f64,
    item: Item,
}

/// Waiting items. Items of one layer keep their order; the layer whose first item waits longest is next.
pub struct Queue {
    max_queued_rows: usize,
    max_batch_rows: usize,
    layers: BTreeMap<u32, VecDeque<Waiting>>,
    arrivals: u64,
    /// While computing, over about the last five batches; 0 before the first.
    pub rows_per_s: f64,
    pub counts: Counts,
    pub queued_rows: usize,
}

impl Queue {
    pub fn new(max_queued_rows: usize, max_batch_rows: usize) -> Self {
        Queue {
            max_queued_rows,
            max_batch_rows,
            layers: BTreeMap::new(),
            arrivals: 0,
            rows_per_s: 0.0,
            counts: Counts::default(),
            queued_rows: 0,
        }
    }

    /// Takes an item, or returns after how many seconds to try again when the queue is full.
    ///
    /// An item that is larger than the bound is taken when nothing else waits.
    pub fn offer(&mut self, item: Item, now: f64) -> Option<f64> {
        let rows = item.rows.len();
        if self.is_full_for(rows) {
            self.counts.overloaded += 1;
            return Some(self.wait_hint_s());
        }
        self.layers
            .entry(item.key.layer)
            .or_default()
            .push_back(Waiting {
                place: self.arrivals,
                since: now,
                item,
            });
        self.arrivals += 1;
        self.queued_rows += rows;
        None
    }

    /// Whether `offer` would turn an item of so many rows away now.
    pub fn is_full_for(&self, rows: usize) -> bool {
        self.queued_rows > 0 && self.queued_rows + rows > self.max_queued_rows
    }

    /// Takes out and returns all items whose deadline has passed.
    pub fn drop_expired(&mut self, now: f64) -> Vec<Item> {
        let expired = self.remove(|item| item.is_expired(now));
        self.counts.expired += expired.len() as u64;
        expired
    }

    /// Takes out and returns all items that are unwanted.
    pub fn remove(&mut self, unwanted: impl Fn(&Item) -> bool) -> Vec<Item> {
        let mut removed = vec![];
        for waiting in self.layers.values_mut() {
            if waiting.iter().any(|each| unwanted(&each.item)) {
                for each in std::mem::take(waiting) {
                    if unwanted(&each.item) {
                        removed.push(each.item);
                    } else {
                        waiting.push_back(each);
                    }
                }
            }
        }
        self.layers.retain(|_, waiting| !waiting.is_empty());
        self.queued_rows -= removed.iter().map(|item| item.rows.len()).sum::<usize>();
        removed
    }

    /// The next batch, of one layer, and the items found expired on the way to it; a larger item goes alone.
    pub fn take(&mut self, now: f64) -> (Vec<Item>, Vec<Item>) {
        let mut expired = vec![];
        loop {
            let oldest = self
                .layers
                .iter()
                .min_by_key(|(_, waiting)| waiting.front().map(|first| first.place));
            let Some((&layer, _)) = oldest else {
                return (vec![], expired);
            };
            let items = self.take_from(layer, now, &mut expired);
            if !items.is_empty() {
                return (items, expired);
            }
        }
    }

    fn take_from(&mut self, layer: u32, now: f64, expired: &mut Vec<Item>) -> Vec<Item> {
        let Some(waiting) = self.layers.get_mut(&layer) else {
            return vec![];
        };
        let (mut items, mut rows) = (vec![], 0);
        while let Some(first) = waiting.front() {
            let more = first.item.rows.len();
            let late = first.item.is_expired(now);
            if !late && !items.is_empty() && rows + more > self.max_batch_rows {
                break;
            }
            let Some(Waiting { since, item, .. }) = waiting.pop_front() else {
                break;
            };
            self.queued_rows -= more;
            if late {
                self.counts.expired += 1;
                expired.push(item);
            } else {
                rows += more;
                self.counts.dispatches += 1;
                self.counts.waited_s += now - since;
                items.push(item);
            }
        }
        if waiting.is_empty() {
            self.layers.remove(&layer);
        }
        items
    }

    /// A batch took so long: what the hint for overloaded routers is reckoned from.
    pub fn measured(&mut self, rows: usize, seconds: f64) {
        let speed = rows as f64 / seconds.max(1e-6);
        self.rows_per_s = if self.rows_per_s > 0.0 {
            MEMORY * self.rows_per_s + (1.0 - MEMORY) * speed
        } else {
            speed
        };
    }

    /// The time in which half of the queue is worked off.
    fn wait_hint_s(&self) -> f64 {
        if self.rows_per_s <= 0.0 {
            return UNKNOWN_WAIT_S;
        }
        (self.queued_rows as f64 / 2.0 / self.rows_per_s).clamp(SHORTEST_WAIT_S, LONGEST_WAIT_S)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(layer: u32, rows: u32, deadline: Option<f64>) -> Item {
        let empty = Rows {
            dtype: Dtype::Int32,
            shape: vec![0],
            data: Default::default(),
        };
        Item {
            stream: 0,
            key: Key { call_id: 1, layer },
            part: 0,
            aggregator: "a".into(),
            rows: Rows {
                dtype: Dtype::Float32,
                shape: vec![rows, 1],
                data: vec![0; rows as usize * 4].into(),
            },
            slot_rows: empty.clone(),
            slot_experts: empty.clone(),
            slot_weights: empty,
            partial_dtype: Dtype::Float32,
            deadline,
        }
    }

    #[test]
    fn joins_the_layer_that_waits_longest_up_to_the_bound() {
        let mut queue = Queue::new(100, 5);
        for (layer, rows) in [(1, 2), (0, 1), (1, 2), (1, 2)] {
            assert_eq!(queue.offer(item(layer, rows, None), 0.0), None);
        }
        assert_eq!(queue.take(0.0).0.len(), 2);
        assert_eq!(queue.take(0.0).0[0].key.layer, 0);
        assert_eq!(queue.take(0.0).0.len(), 1);
        assert_eq!((queue.take(0.0).0.len(), queue.queued_rows), (0, 0));
    }

    #[test]
    fn turns_away_beyond_the_bound_and_drops_what_is_late() {
        let mut queue = Queue::new(4, 100);
        assert_eq!(queue.offer(item(0, 9, Some(1.0)), 0.0), None);
        assert_eq!(queue.offer(item(0, 1, None), 0.0), Some(UNKNOWN_WAIT_S));
        assert_eq!(queue.drop_expired(2.0).len(), 1);
        assert_eq!(queue.offer(item(0, 4, Some(1.0)), 0.0), None);
        let (taken, late) = queue.take(1.0);
        assert_eq!(
            (
                taken.len(),
                late.len(),
                queue.counts.expired,
                queue.counts.overloaded
            ),
            (0, 1, 2, 1)
        );
    }

    #[test]
    fn adds_up_how_long_what_was_taken_had_waited() {
        let mut queue = Queue::new(100, 100);
        for (came, deadline) in [(1.0, None), (2.0, None), (2.5, Some(3.0))] {
            assert_eq!(queue.offer(item(0, 1, deadline), came), None);
        }
        assert_eq!(queue.take(4.0).0.len(), 2);
        assert_eq!((queue.counts.dispatches, queue.counts.waited_s), (2, 5.0));
    }
}
