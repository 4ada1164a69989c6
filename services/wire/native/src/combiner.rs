//! The combiner: a pure state machine from plans and parts to answers; the same policy as moe.aggregator.combiner, and
//! the same table of tests. No I/O, no clock: `now` is passed in, in seconds.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};

use bytes::Bytes;

use crate::api::aggregator::MissingPolicy;
use crate::api::tensor::Dtype;
use crate::sums;
use crate::tensors::{is_float, item_size, name, Rows};

const DROPPED: &str = "came when its layer call was not open and was dropped; send it again";
const LATE: &str = "did not arrive before the deadline";
/// What an early partial costs beside its bytes; an empty one costs something too.
const BYTES_PER_PART: usize = 512;
const MOST_DROPPED_PARTS: usize = 4096;

/// What a layer call is known by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    pub call_id: u64,
    pub layer: u32,
}

#[derive(Clone, Debug, PartialEq)]
pub struct PlannedPart {
    pub part: u32,
    /// Strictly increasing: the answer's row that each row of the partial is added to.
    pub token_index: Vec<i32>,
    /// Each row's routing weights in this part, summed; only renormalise needs them.
    pub row_weights: Option<Vec<f32>>,
}

#[derive(Clone, Debug)]
pub struct Plan {
    pub key: Key,
    pub tokens: usize,
    pub hidden: usize,
    pub dtype: Dtype,
    pub policy: MissingPolicy,
    pub deadline: Option<f64>,
    pub parts: Vec<PlannedPart>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Missing {
    pub part: u32,
    pub reason: String,
    pub rows: usize,
}

#[derive(Clone, Debug)]
pub enum Event {
    Answered {
        owner: u64,
        key: Key,
        rows: Rows,
        missing: Vec<Missing>,
    },
    PartRefused {
        owner: u64,
        key: Key,
        part: u32,
        reason: String,
    },
    SourceLost {
        owner: u64,
        instance: String,
    },
    Rejected {
        owner: u64,
        key: Key,
        message: String,
        deadline: bool,
    },
}

impl Event {
    /// The router that it is for.
    pub fn owner(&self) -> u64 {
        match self {
            Event::Answered { owner, .. }
            | Event::PartRefused { owner, .. }
            | Event::SourceLost { owner, .. }
            | Event::Rejected { owner, .. } => *owner,
        }
    }
}

/// As moe.aggregator.limits.
#[derive(Clone, Debug)]
pub struct Limits {
    pub open_calls: usize,
    pub answer_bytes: usize,
    pub held_bytes: usize,
    pub early_bytes: usize,
    pub early_seconds: f64,
    pub closed_calls: usize,
}

#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    pub combined: u64,
    pub duplicates: u64,
    pub refused: u64,
    pub missing: u64,
    pub failed: u64,
}

struct Open {
    owner: u64,
    plan: Plan,
    rows: BTreeMap<u32, Rows>,
    given_up: HashMap<u32, String>,
    refusals: HashMap<u32, String>,
}

impl Open {
    fn planned(&self, part: u32) -> Option<&PlannedPart> {
        self.plan
            .parts
            .binary_search_by_key(&part, |planned| planned.part)
            .ok()
            .map(|at| &self.plan.parts[at])
    }

    fn held_bytes(&self) -> usize {
        self.rows.values().map(|rows| rows.data.len()).sum()
    }

    /// Whether nothing is left to wait for. Under `wait` a part that was given up may still come in time.
    fn is_settled(&self) -> bool {
        if self.rows.len() == self.plan.parts.len() {
            return true;
        }
        self.plan.policy != MissingPolicy::Wait
            && self
                .plan
                .parts
                .iter()
                .all(|p| self.rows.contains_key(&p.part) || self.given_up.contains_key(&p.part))
    }

    fn missing(&self) -> Vec<Missing> {
        let left = self
            .plan
            .parts
            .iter()
            .filter(|planned| !self.rows.contains_key(&planned.part));
        left.map(|p| Missing {
            part: p.part,
            reason: self.reason(p.part),
            rows: p.token_index.len(),
        })
        .collect()
    }

    fn reason(&self, part: u32) -> String {
        if let Some(reason) = self.given_up.get(&part) {
            return reason.clone();
        }
        self.refusals
            .get(&part)
            .map_or_else(|| LATE.to_string(), |reason| format!("refused: {reason}"))
    }
}

pub struct Combiner {
    limits: Limits,
    open: HashMap<Key, Open>,
    early: EarlyParts,
    closed: ClosedCalls,
    held_bytes: usize,
    tally: Tally,
}

impl Combiner {
    pub fn new(limits: Limits) -> Self {
        Combiner {
            open: HashMap::new(),
            early: EarlyParts::new(limits.early_bytes, limits.early_seconds),
            closed: ClosedCalls::new(limits.closed_calls),
            held_bytes: 0,
            tally: Tally::default(),
            limits,
        }
    }

    /// A layer call begins, with the parts that came before it; the same plan again only moves it to its new owner.
    pub fn plan(&mut self, owner: u64, plan: Plan) -> Vec<Event> {
        let key = plan.key;
        if let Some(known) = self.open.get_mut(&key) {
            if same_plan(&known.plan, &plan) {
                (known.owner, known.plan) = (owner, plan);
                return vec![];
            }
            return self.reject(
                owner,
                key,
                format!(
                    "another plan is open for call {:#x}; take a new id",
                    key.call_id
                ),
            );
        }
        if let Some(fault) = plan_fault(&plan, &self.limits).or_else(|| self.crowded()) {
            return self.reject(owner, key, fault);
        }
        let call = Open {
            owner,
            plan,
            rows: BTreeMap::new(),
            given_up: HashMap::new(),
            refusals: HashMap::new(),
        };
        let mut again: Vec<u32> = self
            .closed
            .reopen(&key)
            .into_iter()
            .filter(|&part| call.planned(part).is_some())
            .collect();
        again.sort_unstable();
        self.open.insert(key, call);
        let mut events: Vec<Event> = again
            .into_iter()
            .map(|part| Event::PartRefused {
                owner,
                key,
                part,
                reason: DROPPED.to_string(),
            })
            .collect();
        for (part, rows) in self.early.take(&key) {
            events.extend(self.accept(key, part, rows));
        }
        events.extend(self.answer_if_settled(key));
        events
    }

    /// A partial arrived; dropped when it was there before or its call is closed.
    pub fn part(&mut self, key: Key, part: u32, rows: Rows, now: f64) -> Vec<Event> {
        if !self.open.contains_key(&key) {
            self.keep_or_drop(key, part, rows, now);
            return vec![];
        }
        let refused = self.accept(key, part, rows);
        refused
            .into_iter()
            .chain(self.answer_if_settled(key))
            .collect()
    }

    /// A partial arrived that can't be read.
    pub fn broken_part(&mut self, key: Key, part: u32, reason: String) -> Vec<Event> {
        match self.open.get(&key) {
            Some(call) if call.rows.contains_key(&part) => vec![],
            Some(_) => vec![self.refuse(key, part, reason)],
            None => {
                self.tally.refused += 1;
                self.closed.drop_part(key, part);
                vec![]
            }
        }
    }

    /// No replica will deliver a part; under `wait` that is the reason told at the deadline.
    pub fn give_up(&mut self, key: Key, part: u32, reason: String) -> Vec<Event> {
        let Some(call) = self.open.get_mut(&key) else {
            return vec![];
        };
        if call.rows.contains_key(&part) || call.planned(part).is_none() {
            return vec![];
        }
        call.given_up.insert(part, reason);
        self.answer_if_settled(key).into_iter().collect()
    }

    /// Nobody waits for a call.
    pub fn abandon(&mut self, key: Key) {
        if let Some(call) = self.open.remove(&key) {
            self.close(key, call.held_bytes());
        }
    }

    /// The owner is gone, and with it all who wait for its calls.
    pub fn forget_owner(&mut self, owner: u64) {
        let keys: Vec<Key> = self
            .open
            .iter()
            .filter(|(_, call)| call.owner == owner)
            .map(|(key, _)| *key)
            .collect();
        for key in keys {
            self.abandon(key);
        }
    }

    /// The stream from an expert process broke, or begins anew after that may have happened.
    pub fn source_lost(&self, instance: &str) -> Vec<Event> {
        let mut owners: Vec<u64> = self.open.values().map(|call| call.owner).collect();
        owners.sort_unstable();
        owners.dedup();
        owners
            .into_iter()
            .map(|owner| Event::SourceLost {
                owner,
                instance: instance.to_string(),
            })
            .collect()
    }

    /// Does what is due: deadlines, and the time that a part may wait for its plan.
    pub fn expire(&mut self, now: f64) -> Vec<Event> {
        for (key, part) in self.early.expire(now) {
            self.closed.drop_part(key, part);
        }
        let due = |call: &Open| call.plan.deadline.is_some_and(|deadline| deadline <= now);
        let mut keys: Vec<Key> = self
            .open
            .iter()
            .filter(|(_, call)| due(call))
            .map(|(key, _)| *key)
            .collect();
        keys.sort_unstable();
        keys.into_iter().map(|key| self.answer(key)).collect()
    }

    /// When `expire` has something to do.
    pub fn next_deadline(&self) -> Option<f64> {
        let calls = self.open.values().filter_map(|call| call.plan.deadline);
        calls
            .chain(self.early.next_deadline())
            .min_by(f64::total_cmp)
            .filter(|deadline| deadline.is_finite())
    }

    /// Counters since the start.
    pub fn tally(&self) -> Tally {
        self.tally
    }

    /// Calls that are open.
    pub fn open_calls(&self) -> usize {
        self.open.len()
    }

    /// Bytes of all partials that wait.
    pub fn held_bytes(&self) -> usize {
        self.held_bytes + self.early.bytes
    }

    fn crowded(&self) -> Option<String> {
        let open = self.open.len();
        (open >= self.limits.open_calls)
            .then(|| format!("{open} layer calls are open, the bound; add an aggregator"))
    }

    fn reject(&mut self, owner: u64, key: Key, message: String) -> Vec<Event> {
        self.tally.failed += 1;
        vec![Event::Rejected {
            owner,
            key,
            message: format!("layer {}: {message}", key.layer),
            deadline: false,
        }]
    }

    fn accept(&mut self, key: Key, part: u32, rows: Rows) -> Option<Event> {
        let call = self.open.get(&key)?;
        if call.rows.contains_key(&part) {
            self.tally.duplicates += 1;
            return None;
        }
        if let Some(fault) = self.fault(call, part, &rows) {
            return Some(self.refuse(key, part, fault));
        }
        self.held_bytes += rows.data.len();
        self.open.get_mut(&key)?.rows.insert(part, rows);
        None
    }

    fn fault(&self, call: &Open, part: u32, rows: &Rows) -> Option<String> {
        let Some(planned) = call.planned(part) else {
            let numbers: Vec<u32> = call.plan.parts.iter().map(|planned| planned.part).collect();
            return Some(format!(
                "part {part} is not in the plan, which has {numbers:?}"
            ));
        };
        part_fault(rows, planned, &call.plan).or_else(|| {
            let (held, bound) = (self.held_bytes() + rows.data.len(), self.limits.held_bytes);
            (held > bound).then(|| format!("waiting parts would take {held} bytes, the bound is {bound}; add an aggregator"))
        })
    }

    fn refuse(&mut self, key: Key, part: u32, reason: String) -> Event {
        self.tally.refused += 1;
        let call = self
            .open
            .get_mut(&key)
            .expect("only parts of open calls are refused");
        if call.planned(part).is_some() {
            call.refusals.insert(part, reason.clone());
        }
        Event::PartRefused {
            owner: call.owner,
            key,
            part,
            reason,
        }
    }

    /// A part without an open call: late or twice, or ahead of its plan.
    fn keep_or_drop(&mut self, key: Key, part: u32, rows: Rows, now: f64) {
        if self.closed.knows(&key) || self.early.has(&key, part) {
            self.tally.duplicates += 1;
            if self.closed.knows(&key) {
                self.closed.drop_part(key, part);
            }
            return;
        }
        if !is_float(rows.dtype) {
            self.tally.refused += 1;
            self.closed.drop_part(key, part);
            return;
        }
        for (dropped, number) in self.early.add(key, part, rows, now) {
            self.tally.refused += 1;
            self.closed.drop_part(dropped, number);
        }
    }

    fn answer_if_settled(&mut self, key: Key) -> Option<Event> {
        self.open.get(&key)?.is_settled().then(|| self.answer(key))
    }

    fn answer(&mut self, key: Key) -> Event {
        let mut call = self
            .open
            .remove(&key)
            .expect("only open calls are answered");
        let held = call.held_bytes();
        let data = answer_rows(&mut call);
        let missing = call.missing();
        self.close(key, held);
        self.tally.combined += 1;
        self.tally.missing += missing.len() as u64;
        let shape = vec![call.plan.tokens as u32, call.plan.hidden as u32];
        Event::Answered {
            owner: call.owner,
            key,
            rows: Rows {
                dtype: call.plan.dtype,
                shape,
                data,
            },
            missing,
        }
    }

    fn close(&mut self, key: Key, held: usize) {
        self.held_bytes -= held;
        self.closed.close(key);
    }
}

/// The answer in the plan's type. A part whose values overflow it in the sum is taken out and given up.
fn answer_rows(call: &mut Open) -> Bytes {
    loop {
        let data = sums::rounded(&sum(call), call.plan.dtype);
        if call.rows.is_empty() || sums::largest(&data, call.plan.dtype).is_finite() {
            return data.into();
        }
        take_out_largest(call, &data);
    }
}

fn sum(call: &Open) -> Vec<f32> {
    let (plan, hidden) = (&call.plan, call.plan.hidden);
    let mut sums = vec![0f32; plan.tokens * hidden];
    for planned in &plan.parts {
        let Some(rows) = call.rows.get(&planned.part) else {
            continue;
        };
        let width = hidden * item_size(rows.dtype);
        for (token, row) in planned
            .token_index
            .iter()
            .zip(rows.data.chunks_exact(width))
        {
            let at = *token as usize * hidden;
            sums::add_row(&mut sums[at..at + hidden], row, rows.dtype);
        }
    }
    if let Some(scale) = scale(call) {
        for (row, factor) in sums.chunks_exact_mut(hidden).zip(scale) {
            row.iter_mut().for_each(|value| *value *= factor);
        }
    }
    sums
}

/// What each token is multiplied by; None where nothing is missing or the policy leaves rows as they are.
fn scale(call: &Open) -> Option<Vec<f32>> {
    let plan = &call.plan;
    if plan.policy != MissingPolicy::Renormalise || call.rows.len() == plan.parts.len() {
        return None;
    }
    let (mut total, mut missing) = (vec![0f32; plan.tokens], vec![0f32; plan.tokens]);
    for planned in &plan.parts {
        for (token, weight) in planned
            .token_index
            .iter()
            .zip(planned.row_weights.iter().flatten())
        {
            total[*token as usize] += weight;
            if !call.rows.contains_key(&planned.part) {
                missing[*token as usize] += weight;
            }
        }
    }
    let factor = |(total, missing): (f32, f32)| {
        let left = total - missing;
        // A difference within float32's rounding of the sums is nothing left, not a weight to divide by.
        if left <= total.abs() * 1e-6 {
            1.0
        } else {
            total / left
        }
    };
    Some(total.into_iter().zip(missing).map(factor).collect())
}

/// Gives up the part with the largest value in the first row that overflowed.
fn take_out_largest(call: &mut Open, data: &[u8]) {
    let (hidden, dtype) = (call.plan.hidden, call.plan.dtype);
    let rows = data.chunks_exact(hidden * item_size(dtype));
    let token = rows
        .into_iter()
        .position(|row| !sums::largest(row, dtype).is_finite())
        .unwrap_or(0);
    let size = |part: u32, rows: &Rows| -> f32 {
        let index = call
            .planned(part)
            .map(|planned| planned.token_index.as_slice())
            .unwrap_or_default();
        let width = hidden * item_size(rows.dtype);
        match index.iter().position(|&at| at as usize == token) {
            Some(at) => sums::largest(&rows.data[at * width..(at + 1) * width], rows.dtype),
            None => -1.0,
        }
    };
    let mut most: Option<(u32, f32)> = None;
    for (&part, rows) in &call.rows {
        let found = size(part, rows);
        if most.is_none_or(|(_, largest)| found > largest) {
            most = Some((part, found));
        }
    }
    let Some((part, largest)) = most else { return };
    call.rows.remove(&part);
    let reason = format!(
        "the sum overflows {} in row {token}, where this part has a value of size {largest:.3}",
        name(dtype)
    );
    call.given_up.insert(part, reason);
}

/// What is wrong with a plan: the thing, the value and the bound.
fn plan_fault(plan: &Plan, limits: &Limits) -> Option<String> {
    if plan.tokens < 1 || plan.hidden < 1 {
        return Some(format!(
            "plan: tokens and hidden must be at least 1, got {} and {}",
            plan.tokens, plan.hidden
        ));
    }
    if !is_float(plan.dtype) {
        return Some(format!(
            "plan.dtype: got {}, want float32, bfloat16 or float16",
            name(plan.dtype)
        ));
    }
    let size = plan
        .tokens
        .saturating_mul(plan.hidden)
        .saturating_mul(item_size(plan.dtype));
    if size > limits.answer_bytes {
        return Some(format!(
            "plan: the answer [{}, {}] takes {size} bytes, the bound is {}; send fewer tokens in a layer call",
            plan.tokens, plan.hidden, limits.answer_bytes
        ));
    }
    if plan
        .parts
        .windows(2)
        .any(|pair| pair[1].part <= pair[0].part)
    {
        let numbers: Vec<u32> = plan.parts.iter().map(|planned| planned.part).collect();
        return Some(format!(
            "plan.parts: must ascend strictly by part, got {numbers:?}"
        ));
    }
    plan.parts
        .iter()
        .find_map(|planned| planned_fault(planned, plan))
}

fn planned_fault(planned: &PlannedPart, plan: &Plan) -> Option<String> {
    let (index, name) = (
        &planned.token_index,
        format!("plan.parts[part={}]", planned.part),
    );
    if index.is_empty() {
        return Some(format!(
            "{name}.token_index: got int32 [0], want int32 [rows] with at least one row"
        ));
    }
    let rising = index.windows(2).all(|pair| pair[0] < pair[1]);
    if !rising || index[0] < 0 || index[index.len() - 1] as usize >= plan.tokens {
        return Some(format!(
            "{name}.token_index: must rise strictly within 0 to {}",
            plan.tokens - 1
        ));
    }
    if plan.policy != MissingPolicy::Renormalise {
        return None;
    }
    match &planned.row_weights {
        Some(weights) if weights.len() == index.len() => {
            (!weights.iter().all(|weight| weight.is_finite()))
                .then(|| format!("{name}.row_weights: must be finite"))
        }
        weights => {
            let got = weights.as_ref().map_or("none".to_string(), |weights| {
                format!("float32 [{}]", weights.len())
            });
            Some(format!(
                "{name}.row_weights: got {got}, want float32 [{}], which renormalise scales by",
                index.len()
            ))
        }
    }
}

/// What is wrong with a partial that arrived for `planned`.
fn part_fault(rows: &Rows, planned: &PlannedPart, plan: &Plan) -> Option<String> {
    if !is_float(rows.dtype) {
        return Some(format!(
            "dtype: got {}, want float32, bfloat16 or float16",
            name(rows.dtype)
        ));
    }
    let want = [planned.token_index.len(), plan.hidden];
    if rows.shape.len() != 2
        || rows
            .shape
            .iter()
            .zip(want)
            .any(|(&got, want)| got as usize != want)
    {
        return Some(format!("shape: got {:?}, want {want:?}", rows.shape));
    }
    let bound = (f64::from(f32::MAX) / plan.parts.len() as f64) as f32;
    let largest = sums::largest(&rows.data, rows.dtype);
    if largest.is_nan() {
        return Some("values: NaN among them".to_string());
    }
    if largest.is_infinite() {
        return Some("values: infinity among them".to_string());
    }
    (largest > bound)
        .then(|| format!("values: {largest:e} in size, beyond {bound:e}, would overflow the sum"))
}

/// Whether two plans ask for the same, whatever their deadlines.
fn same_plan(one: &Plan, other: &Plan) -> bool {
    let head = |plan: &Plan| (plan.tokens, plan.hidden, plan.dtype, plan.policy);
    head(one) == head(other) && one.parts == other.parts
}

struct EarlyCall {
    since: f64,
    rows: BTreeMap<u32, Rows>,
}

/// Partials whose plan has not come, bounded in bytes and time.
struct EarlyParts {
    max_bytes: usize,
    seconds: f64,
    calls: HashMap<Key, EarlyCall>,
    order: VecDeque<(Key, f64)>,
    bytes: usize,
}

fn cost(rows: &Rows) -> usize {
    rows.data.len() + BYTES_PER_PART
}

impl EarlyParts {
    fn new(max_bytes: usize, seconds: f64) -> Self {
        EarlyParts {
            max_bytes,
            seconds,
            calls: HashMap::new(),
            order: VecDeque::new(),
            bytes: 0,
        }
    }

    fn has(&self, key: &Key, part: u32) -> bool {
        self.calls
            .get(key)
            .is_some_and(|call| call.rows.contains_key(&part))
    }

    /// Keeps a partial; returns the parts, oldest calls first, that had to be dropped to make room.
    fn add(&mut self, key: Key, part: u32, rows: Rows, now: f64) -> Vec<(Key, u32)> {
        self.bytes += cost(&rows);
        let order = &mut self.order;
        let call = self.calls.entry(key).or_insert_with(|| {
            order.push_back((key, now));
            EarlyCall {
                since: now,
                rows: BTreeMap::new(),
            }
        });
        call.rows.insert(part, rows);
        let mut dropped = vec![];
        while self.bytes > self.max_bytes {
            match self.drop_oldest() {
                Some(parts) => dropped.extend(parts),
                None => break,
            }
        }
        dropped
    }

    fn take(&mut self, key: &Key) -> BTreeMap<u32, Rows> {
        let Some(call) = self.calls.remove(key) else {
            return BTreeMap::new();
        };
        self.bytes -= call.rows.values().map(cost).sum::<usize>();
        self.forget_order();
        call.rows
    }

    fn expire(&mut self, now: f64) -> Vec<(Key, u32)> {
        let mut dropped = vec![];
        while self.next_deadline().is_some_and(|deadline| deadline <= now) {
            dropped.extend(self.drop_oldest().unwrap_or_default());
        }
        dropped
    }

    fn next_deadline(&self) -> Option<f64> {
        self.order
            .iter()
            .find(|entry| self.is_current(entry))
            .map(|(_, since)| since + self.seconds)
    }

    fn drop_oldest(&mut self) -> Option<Vec<(Key, u32)>> {
        while let Some(entry) = self.order.pop_front() {
            if self.is_current(&entry) {
                let call = self.calls.remove(&entry.0)?;
                self.bytes -= call.rows.values().map(cost).sum::<usize>();
                return Some(call.rows.keys().map(|&part| (entry.0, part)).collect());
            }
        }
        None
    }

    fn is_current(&self, (key, since): &(Key, f64)) -> bool {
        self.calls.get(key).is_some_and(|call| call.since == *since)
    }

    /// Entries of calls that were taken go when they reach the front, or when they are most of the queue.
    fn forget_order(&mut self) {
        if self.order.len() > 64 + 2 * self.calls.len() {
            let order = std::mem::take(&mut self.order);
            self.order = order
                .into_iter()
                .filter(|entry| self.is_current(entry))
                .collect();
        }
        while self
            .order
            .front()
            .is_some_and(|entry| !self.is_current(entry))
        {
            self.order.pop_front();
        }
    }
}

/// The newest calls that have ended, each with the parts that came, and were dropped, since.
struct ClosedCalls {
    capacity: usize,
    dropped: HashMap<Key, (u64, HashSet<u32>)>,
    order: VecDeque<(Key, u64)>,
    clock: u64,
}

impl ClosedCalls {
    fn new(capacity: usize) -> Self {
        ClosedCalls {
            capacity,
            dropped: HashMap::new(),
            order: VecDeque::new(),
            clock: 0,
        }
    }

    fn close(&mut self, key: Key) {
        self.clock += 1;
        self.dropped.insert(key, (self.clock, HashSet::new()));
        self.order.push_back((key, self.clock));
        while self.dropped.len() > self.capacity {
            self.pop_oldest();
        }
        if self.order.len() > 64 + 2 * self.capacity {
            let order = std::mem::take(&mut self.order);
            self.order = order
                .into_iter()
                .filter(|entry| self.is_current(entry))
                .collect();
        }
    }

    fn knows(&self, key: &Key) -> bool {
        self.dropped.contains_key(key)
    }

    fn drop_part(&mut self, key: Key, part: u32) {
        if !self.knows(&key) {
            self.close(key);
        }
        if let Some((_, parts)) = self.dropped.get_mut(&key) {
            if parts.len() < MOST_DROPPED_PARTS {
                parts.insert(part);
            }
        }
    }

    fn reopen(&mut self, key: &Key) -> HashSet<u32> {
        self.dropped
            .remove(key)
            .map(|(_, parts)| parts)
            .unwrap_or_default()
    }

    fn is_current(&self, (key, at): &(Key, u64)) -> bool {
        self.dropped
            .get(key)
            .is_some_and(|(closed, _)| closed == at)
    }

    fn pop_oldest(&mut self) {
        while let Some(entry) = self.order.pop_front() {
            if self.is_current(&entry) {
                self.dropped.remove(&entry.0);
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: Key = Key {
        call_id: 7,
        layer: 3,
    };
    const PARTS: [f32; 3] = [1.0, 2.0, 4.0];

    fn limits() -> Limits {
        Limits {
            open_calls: 4,
            answer_bytes: 1 << 20,
            held_bytes: 1 << 20,
            early_bytes: 4096,
            early_seconds: 30.0,
            closed_calls: 8,
        }
    }

    /// Three parts over three tokens; token 0 is in parts 0 and 2, token 1 in 0 and 1, token 2 in 1 and 2.
    fn plan(policy: MissingPolicy, dtype: Dtype) -> Plan {
        let part = |part, token_index: [i32; 2]| PlannedPart {
            part,
            token_index: token_index.to_vec(),
            row_weights: Some(vec![0.25, 0.75]),
        };
        let parts = vec![part(0, [0, 1]), part(1, [1, 2]), part(2, [0, 2])];
        Plan {
            key: KEY,
            tokens: 3,
            hidden: 2,
            dtype,
            policy,
            deadline: Some(10.0),
            parts,
        }
    }

    fn partial(value: f32) -> Rows {
        Rows {
            dtype: Dtype::Float32,
            shape: vec![2, 2],
            data: sums::rounded(&[value; 4], Dtype::Float32).into(),
        }
    }

    fn opened(policy: MissingPolicy) -> Combiner {
        let mut combiner = Combiner::new(limits());
        assert!(combiner.plan(1, plan(policy, Dtype::Float32)).is_empty());
        combiner
    }

    fn deliver(combiner: &mut Combiner, parts: &[u32]) -> Vec<Event> {
        parts
            .iter()
            .flat_map(|&part| combiner.part(KEY, part, partial(PARTS[part as usize]), 1.0))
            .collect()
    }

    fn answer(events: Vec<Event>) -> (Vec<f32>, Vec<Missing>) {
        let [Event::Answered {
            owner: 1,
            key: KEY,
            rows,
            missing,
        }] = events.as_slice()
        else {
            panic!("not one answer: {events:?}")
        };
        let values = (0..rows.data.len() / item_size(rows.dtype))
            .map(|at| sums::value(&rows.data, at, rows.dtype));
        (values.collect(), missing.clone())
    }

    const WHOLE: [f32; 6] = [5.0, 5.0, 3.0, 3.0, 6.0, 6.0];

    #[test]
    fn answers_with_the_sum_whatever_the_order_of_arrival() {
        for policy in [
            MissingPolicy::Wait,
            MissingPolicy::Renormalise,
            MissingPolicy::Fail,
        ] {
            for order in [[0, 1, 2], [2, 0, 1], [1, 2, 0]] {
                assert_eq!(
                    answer(deliver(&mut opened(policy), &order)),
                    (WHOLE.to_vec(), vec![])
                );
            }
        }
    }

    #[test]
    fn takes_parts_that_come_before_their_plan() {
        let mut combiner = Combiner::new(limits());
        assert!(deliver(&mut combiner, &[0, 2]).is_empty());
        assert!(combiner
            .plan(1, plan(MissingPolicy::Wait, Dtype::Bfloat16))
            .is_empty());
        assert_eq!(answer(deliver(&mut combiner, &[1])).0, WHOLE);
        assert_eq!(combiner.held_bytes(), 0);
    }

    #[test]
    fn a_second_arrival_is_dropped_and_counted() {
        let mut combiner = opened(MissingPolicy::Wait);
        assert!(deliver(&mut combiner, &[0, 0, 1, 1]).is_empty());
        assert_eq!(answer(deliver(&mut combiner, &[2])).0, WHOLE);
        assert!(deliver(&mut combiner, &[2]).is_empty());
        assert_eq!(
            (combiner.tally().duplicates, combiner.tally().combined),
            (3, 1)
        );
    }

    #[test]
    fn a_broken_part_is_refused_with_its_reason_and_may_come_again() {
        let wrong_shape = Rows {
            shape: vec![4, 1],
            ..partial(1.0)
        };
        let wrong_type = Rows {
            dtype: Dtype::Int32,
            ..partial(1.0)
        };
        for (rows, reason) in [
            (wrong_shape, "shape"),
            (wrong_type, "dtype"),
            (partial(f32::NAN), "NaN"),
            (partial(f32::INFINITY), "infinity"),
            (partial(f32::MAX), "overflow"),
        ] {
            let mut combiner = opened(MissingPolicy::Wait);
            let events = combiner.part(KEY, 1, rows, 1.0);
            let [Event::PartRefused {
                part: 1,
                reason: got,
                ..
            }] = events.as_slice()
            else {
                panic!("{events:?}")
            };
            assert!(got.contains(reason), "{got}");
            assert_eq!(answer(deliver(&mut combiner, &[0, 1, 2])).0, WHOLE);
        }
    }

    #[test]
    fn renormalise_scales_the_weights_left_up_to_the_whole_sum() {
        let mut combiner = opened(MissingPolicy::Renormalise);
        deliver(&mut combiner, &[0, 2]);
        let (rows, missing) = answer(combiner.give_up(KEY, 1, "gone".into()));
        // Token 1 has 0.75 left of 1.0, token 2 has 0.75 of 1.5.
        assert_eq!(
            rows,
            [5.0, 5.0, 1.0 * (1.0 / 0.75), 1.0 * (1.0 / 0.75), 8.0, 8.0]
        );
        assert_eq!(
            missing,
            [Missing {
                part: 1,
                reason: "gone".into(),
                rows: 2
            }]
        );
    }

    #[test]
    fn wait_answers_at_the_deadline_and_fail_at_once() {
        let mut combiner = opened(MissingPolicy::Wait);
        deliver(&mut combiner, &[0, 1]);
        assert!(combiner.give_up(KEY, 2, "gone".into()).is_empty());
        assert_eq!(combiner.next_deadline(), Some(10.0));
        assert_eq!(answer(combiner.expire(10.0)).1[0].reason, "gone");
        let mut combiner = opened(MissingPolicy::Fail);
        deliver(&mut combiner, &[0, 1]);
        assert_eq!(answer(combiner.give_up(KEY, 2, "gone".into())).1.len(), 1);
    }

    #[test]
    fn a_part_dropped_after_the_end_is_asked_for_again_when_its_plan_comes_anew() {
        let mut combiner = opened(MissingPolicy::Wait);
        combiner.abandon(KEY);
        assert!(deliver(&mut combiner, &[1]).is_empty());
        let events = combiner.plan(1, plan(MissingPolicy::Wait, Dtype::Float32));
        assert!(
            matches!(events.as_slice(), [Event::PartRefused { part: 1, reason, .. }] if reason == DROPPED)
        );
    }

    #[test]
    fn early_parts_are_bounded_in_bytes_and_time() {
        let mut combiner = Combiner::new(limits());
        for call_id in 0..100 {
            combiner.part(Key { call_id, layer: 0 }, 0, partial(1.0), call_id as f64);
        }
        assert!(combiner.held_bytes() <= 4096);
        combiner.expire(1000.0);
        assert_eq!((combiner.held_bytes(), combiner.next_deadline()), (0, None));
    }

    #[test]
    fn a_part_that_overflows_the_answer_is_taken_out_and_named() {
        let mut combiner = Combiner::new(limits());
        combiner.plan(1, plan(MissingPolicy::Wait, Dtype::Float16));
        combiner.part(KEY, 0, partial(60_000.0), 1.0);
        combiner.part(KEY, 1, partial(1.0), 1.0);
        let (rows, missing) = answer(combiner.part(KEY, 2, partial(50_000.0), 1.0));
        assert_eq!((missing.len(), missing[0].part), (1, 0));
        assert!(rows.iter().all(|value| value.is_finite()));
    }

    #[test]
    fn plans_that_make_no_sense_are_rejected_by_name() {
        let good = plan(MissingPolicy::Renormalise, Dtype::Float32);
        let mut cases: Vec<(Plan, &str)> = vec![];
        cases.push((
            Plan {
                tokens: 0,
                ..good.clone()
            },
            "tokens",
        ));
        cases.push((
            Plan {
                dtype: Dtype::Int64,
                ..good.clone()
            },
            "dtype",
        ));
        cases.push((
            Plan {
                tokens: 1 << 30,
                ..good.clone()
            },
            "bytes",
        ));
        let mut bent = good.clone();
        bent.parts.swap(0, 1);
        cases.push((bent, "ascend"));
        let mut bent = good.clone();
        bent.parts[0].token_index = vec![1, 1];
        cases.push((bent, "rise"));
        let mut bent = good.clone();
        bent.parts[0].row_weights = None;
        cases.push((bent, "row_weights"));
        for (plan, word) in cases {
            let events = Combiner::new(limits()).plan(1, plan);
            let [Event::Rejected { message, .. }] = events.as_slice() else {
                panic!("{events:?}")
            };
            assert!(message.contains(word), "{message}");
        }
    }
}
