//! Experts, routers and layer calls for the tests: real streams over unix sockets, arithmetic that is easy to redo.
//!
//! Expert `e` answers `e + 1` times its row; a partial is the weighted sum over a row's slots, all in float32.
#![allow(dead_code)]

pub mod raw;

use std::collections::BTreeMap;
use std::ffi::{c_char, c_void};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::Bytes;
use moe_wire_native::aggregator::Aggregator;
use moe_wire_native::api::aggregator::MissingPolicy;
use moe_wire_native::api::expert::DispatchRequest;
use moe_wire_native::api::tensor::{Dtype, Tensor};
use moe_wire_native::combiner::{self, Key, Plan, PlannedPart};
use moe_wire_native::driver::{monotonic, Driver};
use moe_wire_native::expert::{self, Batch, Expert, Kernel};
use moe_wire_native::ledger::Kind;
use moe_wire_native::router::{timeout_us, Dispatch, Outcome, Router};
use moe_wire_native::serve::Listener;
use moe_wire_native::settings::Settings;
use moe_wire_native::tensors::int32_message;

pub const HIDDEN: usize = 16;
/// That kernels are told to compute with.
pub const THREADS: i32 = 3;
pub const LAYER: u32 = 3;
/// Experts in each group.
pub const HELD: usize = 4;
/// Longest any test waits for anything.
pub const PATIENCE: Duration = Duration::from_secs(20);

static NUMBERS: AtomicU64 = AtomicU64::new(1);

/// A new gRPC target over a unix socket.
pub fn target() -> String {
    let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
    let name = format!("moe-wire-{}-{number}", std::process::id());
    let path: PathBuf = std::env::temp_dir().join(name);
    let _ = std::fs::remove_file(&path);
    format!("unix:{}", path.display())
}

pub fn settings() -> Settings {
    Settings::default()
}

/// Waits for something to become true, asking all the time.
pub fn wait_until(what: &str, holds: impl Fn() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < PATIENCE, "never came: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

pub fn combiner_limits() -> combiner::Limits {
    combiner::Limits {
        open_calls: 64,
        answer_bytes: 63 << 20,
        held_bytes: 1 << 30,
        early_bytes: 64 << 20,
        early_seconds: 30.0,
        closed_calls: 4096,
    }
}

/// group: its experts are `HELD * group` and the next ones.
pub fn expert_limits(group: usize) -> expert::Limits {
    let ids = (0..HELD).map(|at| (group * HELD + at) as i32).collect();
    expert::Limits {
        hidden: HIDDEN,
        dtype: Dtype::Float32,
        experts_by_layer: BTreeMap::from([(LAYER, ids)]),
        max_rows: 16384,
        max_queued_rows: 32768,
        max_batch_rows: 4096,
    }
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes
        .chunks_exact(4)
        .map(|four| f32::from_le_bytes(four.try_into().unwrap()))
        .collect()
}

fn ints(bytes: &[u8]) -> Vec<i32> {
    bytes
        .chunks_exact(4)
        .map(|four| i32::from_le_bytes(four.try_into().unwrap()))
        .collect()
}

/// What the interpreter would do with a batch.
pub fn compute(batch: &Batch) -> Vec<Bytes> {
    let partial = |item: &moe_wire_native::queue::Item| {
        let rows = floats(&item.rows.data);
        let mut sums = vec![0f32; rows.len()];
        let slots = ints(&item.slot_rows.data)
            .into_iter()
            .zip(ints(&item.slot_experts.data));
        for ((row, expert), weight) in slots.zip(floats(&item.slot_weights.data)) {
            for at in row as usize * HIDDEN..(row as usize + 1) * HIDDEN {
                sums[at] += weight * (expert + 1) as f32 * rows[at];
            }
        }
        let bytes: Vec<u8> = sums.iter().flat_map(|sum| sum.to_le_bytes()).collect();
        Bytes::from(bytes)
    };
    batch.items.iter().map(partial).collect()
}

/// The same behind the kernel library's C signature.
pub unsafe extern "C" fn scaled(
    handle: *const c_void,
    rows: *const c_void,
    row_stride: i64,
    n_rows: i64,
    slot_rows: *const i32,
    slot_experts: *const i32,
    slot_weights: *const c_void,
    weights_dtype: i32,
    n_slots: i64,
    partial: *mut c_void,
    partial_dtype: i32,
    threads: i32,
    error: *mut c_char,
    error_size: i64,
) -> i32 {
    assert_eq!((row_stride, threads), (HIDDEN as i64, THREADS));
    let fails = !handle.is_null();
    if fails || weights_dtype != 1 || partial_dtype != 1 {
        let message = b"no memory today\0";
        assert!(error_size as usize >= message.len());
        std::ptr::copy_nonoverlapping(message.as_ptr().cast(), error, message.len());
        return 1;
    }
    let partial: *mut f32 = partial.cast();
    assert!(partial.is_aligned());
    let at =
        |pointer: *const c_void, index: usize| pointer.cast::<f32>().add(index).read_unaligned();
    for index in 0..n_rows as usize * HIDDEN {
        partial.add(index).write(0.0);
    }
    for slot in 0..n_slots as usize {
        let (row, expert) = (*slot_rows.add(slot) as usize, *slot_experts.add(slot));
        for index in row * HIDDEN..(row + 1) * HIDDEN {
            let more = at(slot_weights, slot) * (expert + 1) as f32 * at(rows, index);
            *partial.add(index) += more;
        }
    }
    0
}

/// An expert process in a thread: computes until it is stopped.
pub struct Group {
    pub expert: Arc<Expert>,
    pub target: String,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    alive: bool,
}

/// How a group computes.
#[derive(Clone, Copy, PartialEq)]
pub enum Way {
    /// Every batch is handed out.
    Interpreter,
    /// Every batch is computed inside.
    Kernel,
    /// Nothing is taken from the queue.
    Nothing,
}

impl Group {
    pub fn start(group: usize, way: Way) -> Group {
        Group::with(&target(), expert_limits(group), way, settings(), None)
    }

    pub fn with(
        target: &str,
        limits: expert::Limits,
        way: Way,
        settings: Settings,
        back_end: Option<String>,
    ) -> Group {
        let driver = Driver::new("expert", || {}).unwrap();
        let instance = format!("{target}-{}", NUMBERS.fetch_add(1, Ordering::Relaxed));
        let expert = Expert::new(&instance, limits, settings, driver);
        if way == Way::Kernel {
            let kernel = Kernel {
                function: scaled,
                handle: 0,
                threads: THREADS,
            };
            // SAFETY: `scaled` keeps the promise and lives for ever.
            unsafe { expert.set_kernel(LAYER, kernel) };
        }
        expert
            .serve(Listener::bind(target).unwrap(), back_end)
            .unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let thread = (way != Way::Nothing).then(|| {
            let (expert, stop) = (expert.clone(), stop.clone());
            std::thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    if let Some(batch) = expert.next_batch(Duration::from_millis(20)) {
                        let partials = compute(&batch);
                        expert.finish(batch, partials).unwrap();
                    }
                }
            })
        });
        Group {
            expert,
            target: target.to_string(),
            stop,
            thread,
            alive: true,
        }
    }

    /// As the death of a process: every stream breaks at once.
    pub fn kill(&mut self) {
        if !std::mem::replace(&mut self.alive, false) {
            return;
        }
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
        self.expert.close();
        if let Some(path) = self.target.strip_prefix("unix:") {
            let _ = std::fs::remove_file(path);
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.kill();
    }
}

pub fn aggregator(experts: &[String]) -> (Aggregator, String) {
    let at = target();
    let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
    let aggregator = Aggregator::start(
        "agg",
        &number.to_string(),
        combiner_limits(),
        settings(),
        Listener::bind(&at).unwrap(),
        None,
    )
    .unwrap();
    aggregator.set_experts(experts);
    (aggregator, at)
}

/// A router with a combiner inside.
pub fn router(experts: &[String], aggregators: &[String]) -> Arc<Router> {
    router_with(experts, aggregators, settings())
}

pub fn router_with(experts: &[String], aggregators: &[String], settings: Settings) -> Arc<Router> {
    let driver = Driver::new("router", || {}).unwrap();
    let name = format!("router-{}", NUMBERS.fetch_add(1, Ordering::Relaxed));
    let router = Router::new(&name, Some(combiner_limits()), settings, driver);
    router.set_endpoints(experts, aggregators);
    router
}

pub struct Part {
    pub part: u32,
    pub token_index: Vec<i32>,
    pub slot_rows: Vec<i32>,
    pub slot_experts: Vec<i32>,
    pub slot_weights: Vec<f32>,
}

pub struct LayerCall {
    pub key: Key,
    pub rows: Vec<Vec<f32>>,
    pub parts: Vec<Part>,
    pub policy: MissingPolicy,
    pub deadline: f64,
}

/// Numbers that look random and are the same each time.
pub struct Dice(pub u64);

impl Dice {
    pub fn next(&mut self) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        self.0 >> 33
    }

    pub fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }
}

impl LayerCall {
    /// Each token to two experts of all the groups'; a group that no token chose has no part.
    pub fn new(tokens: usize, groups: usize, seconds: f64) -> LayerCall {
        let call_id = NUMBERS.fetch_add(1, Ordering::Relaxed) << 20;
        let mut dice = Dice(call_id);
        let rows: Vec<Vec<f32>> = (0..tokens)
            .map(|_| {
                (0..HIDDEN)
                    .map(|_| dice.below(2001) as f32 / 1000.0 - 1.0)
                    .collect()
            })
            .collect();
        let mut chosen: BTreeMap<usize, BTreeMap<i32, Vec<(i32, f32)>>> = BTreeMap::new();
        for token in 0..tokens as i32 {
            let first = dice.below(groups * HELD);
            let second = (first + 1 + dice.below(groups * HELD - 1)) % (groups * HELD);
            for expert in [first, second] {
                let weight = dice.below(1000) as f32 / 1000.0;
                let group = chosen.entry(expert / HELD).or_default();
                group
                    .entry(token)
                    .or_default()
                    .push((expert as i32, weight));
            }
        }
        let parts = chosen.into_iter().map(|(group, tokens)| {
            let mut part = Part {
                part: group as u32,
                token_index: tokens.keys().copied().collect(),
                slot_rows: vec![],
                slot_experts: vec![],
                slot_weights: vec![],
            };
            for (row, slots) in tokens.into_values().enumerate() {
                for (expert, weight) in slots {
                    part.slot_rows.push(row as i32);
                    part.slot_experts.push(expert);
                    part.slot_weights.push(weight);
                }
            }
            part
        });
        LayerCall {
            key: Key {
                call_id,
                layer: LAYER,
            },
            rows,
            parts: parts.collect(),
            policy: MissingPolicy::Wait,
            deadline: monotonic() + seconds,
        }
    }

    /// The answer in float64, straight from the slots; parts that are left out count nothing.
    pub fn expected(&self, without: &[u32]) -> Vec<f64> {
        let mut sums = vec![0f64; self.rows.len() * HIDDEN];
        for part in self
            .parts
            .iter()
            .filter(|part| !without.contains(&part.part))
        {
            for (slot, &row) in part.slot_rows.iter().enumerate() {
                let token = part.token_index[row as usize] as usize;
                let factor =
                    f64::from(part.slot_weights[slot]) * f64::from(part.slot_experts[slot] + 1);
                for (at, value) in self.rows[token].iter().enumerate() {
                    sums[token * HIDDEN + at] += factor * f64::from(*value);
                }
            }
        }
        sums
    }

    pub fn plan(&self) -> Plan {
        Plan {
            key: self.key,
            tokens: self.rows.len(),
            hidden: HIDDEN,
            dtype: Dtype::Float32,
            policy: self.policy,
            deadline: Some(self.deadline),
            parts: self
                .parts
                .iter()
                .map(|part| PlannedPart {
                    part: part.part,
                    token_index: part.token_index.clone(),
                    row_weights: (self.policy == MissingPolicy::Renormalise)
                        .then(|| part.row_weights()),
                })
                .collect(),
        }
    }

    pub fn dispatch(&self, part: u32, endpoint: &str) -> Dispatch {
        let part = self.parts.iter().find(|each| each.part == part).unwrap();
        let rows = part
            .token_index
            .iter()
            .flat_map(|&token| &self.rows[token as usize]);
        let request = DispatchRequest {
            call_id: self.key.call_id,
            layer: self.key.layer,
            part: part.part,
            aggregator: String::new(),
            timeout_us: timeout_us(Some(self.deadline)),
            rows: Some(float_message(
                rows.copied(),
                &[part.token_index.len(), HIDDEN],
            )),
            slot_rows: Some(int32_message(&part.slot_rows)),
            slot_experts: Some(int32_message(&part.slot_experts)),
            slot_weights: Some(float_message(
                part.slot_weights.iter().copied(),
                &[part.slot_weights.len()],
            )),
            partial_dtype: 0,
        };
        Dispatch {
            endpoint: endpoint.to_string(),
            request,
        }
    }

    /// Runs the call as a router does: parts that fail for want of a stream are sent again until the deadline.
    /// endpoints: replicas of each group, tried in turn.
    pub fn run(
        &self,
        router: &Router,
        endpoints: &[Vec<String>],
        aggregator: Option<&str>,
    ) -> Outcome {
        let mut tries = BTreeMap::<u32, usize>::new();
        let mut send: Vec<u32> = self.parts.iter().map(|part| part.part).collect();
        loop {
            let dispatches = send
                .iter()
                .map(|&part| {
                    let replicas = &endpoints[part as usize];
                    let next = tries.entry(part).or_default();
                    *next += 1;
                    self.dispatch(part, &replicas[(*next - 1) % replicas.len()])
                })
                .collect();
            let outcome = router.exchange(
                self.key,
                || self.plan(),
                dispatches,
                aggregator,
                self.deadline,
                self.deadline,
            );
            match outcome {
                Outcome::Incomplete(failures)
                    if failures.iter().all(|f| f.kind != Kind::Invalid) =>
                {
                    send = failures.iter().map(|failure| failure.part).collect();
                    std::thread::sleep(Duration::from_millis(5));
                }
                other => return other,
            }
        }
    }

    /// Runs the call and checks the answer.
    pub fn check(&self, router: &Router, endpoints: &[Vec<String>], aggregator: Option<&str>) {
        match self.run(router, endpoints, aggregator) {
            Outcome::Combined { rows, missing } => {
                assert!(missing.is_empty(), "{missing:?}");
                close_to(&floats(&rows.data), &self.expected(&[]));
            }
            other => panic!("{other:?}"),
        }
    }
}

impl Part {
    fn row_weights(&self) -> Vec<f32> {
        let mut sums = vec![0f32; self.token_index.len()];
        for (&row, weight) in self.slot_rows.iter().zip(&self.slot_weights) {
            sums[row as usize] += weight;
        }
        sums
    }
}

/// float32 sums of a few dozen values below 100: the rounding of each addition, not more.
pub fn close_to(got: &[f32], want: &[f64]) {
    assert_eq!(got.len(), want.len());
    for (got, want) in got.iter().zip(want) {
        assert!((f64::from(*got) - want).abs() < 1e-3, "{got} {want}");
    }
}

pub fn answer(outcome: &Outcome) -> Vec<f32> {
    match outcome {
        Outcome::Combined { rows, .. } => floats(&rows.data),
        other => panic!("{other:?}"),
    }
}

pub fn float_message(values: impl Iterator<Item = f32>, shape: &[usize]) -> Tensor {
    let data: Vec<u8> = values.flat_map(f32::to_le_bytes).collect();
    Tensor {
        dtype: Dtype::Float32 as i32,
        shape: shape.iter().map(|&extent| extent as u32).collect(),
        data: data.into(),
    }
}

pub fn alone(targets: &[&Group]) -> Vec<Vec<String>> {
    targets
        .iter()
        .map(|group| vec![group.target.clone()])
        .collect()
}

pub fn targets(groups: &[&Group]) -> Vec<String> {
    groups.iter().map(|group| group.target.clone()).collect()
}
