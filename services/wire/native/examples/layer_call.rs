//! What one layer call costs over the native wire with experts that compute nothing: eight expert processes, unix
//! sockets, hidden 1024 in bfloat16, two experts a token, the combiner inside the router or in a process of its own.
//!
//!     cargo run --release --example layer_call [-- CALLS [GROUPS]]
//!
//! Prints microseconds (median and 90th percentile), and the CPU time of all processes, per call and over the wall
//! time. `sockets` is the floor: the same rows to as many processes and back over sockets alone, without messages,
//! streams, checks or sums. Cold: 0.6 ms of other memory is read between two calls, as attention's weights are. Every
//! answer of the first calls of a cell is checked.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use moe_wire_native::aggregator::Aggregator;
use moe_wire_native::api::aggregator::MissingPolicy;
use moe_wire_native::api::expert::DispatchRequest;
use moe_wire_native::api::tensor::{Dtype, Tensor};
use moe_wire_native::combiner::{self, Key, Plan, PlannedPart};
use moe_wire_native::driver::{monotonic, Driver};
use moe_wire_native::expert::kernel::echo;
use moe_wire_native::expert::{self, Expert, Kernel};
use moe_wire_native::router::{timeout_us, Dispatch, Outcome, Router};
use moe_wire_native::serve::Listener;
use moe_wire_native::settings::Settings;
use moe_wire_native::tensors::int32_message;

const HIDDEN: usize = 1024;
const EXPERTS_PER_TOKEN: usize = 2;
const COLD_BYTES: usize = 8 << 20;
const COLD_WORK: Duration = Duration::from_micros(600);

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.first().map(String::as_str) {
        Some("expert") => serve_expert(&arguments[1]),
        Some("aggregator") => serve_aggregator(&arguments[1], &arguments[2..]),
        Some("sockets") => serve_sockets(&arguments[1]),
        _ => {
            let number = |at: usize| {
                arguments
                    .get(at)
                    .map(|text| text.parse().expect("a number"))
            };
            measure(number(0).unwrap_or(3000), number(1).unwrap_or(8));
        }
    }
}

fn serve_expert(target: &str) {
    let driver = Driver::new("expert", || {}).expect("a runtime");
    let limits = expert::Limits {
        hidden: HIDDEN,
        dtype: Dtype::Bfloat16,
        experts_by_layer: BTreeMap::from([(0, (0..1024).collect())]),
        max_rows: 16384,
        max_queued_rows: 32768,
        max_batch_rows: 4096,
    };
    let expert = Expert::new(target, limits, Settings::default(), driver);
    let kernel = Kernel {
        function: echo,
        handle: HIDDEN * 2,
        threads: 1,
    };
    // SAFETY: `echo` fills the partial and looks at nothing else; rows are of bfloat16, and so are the partials here.
    unsafe { expert.set_kernel(0, kernel) };
    expert
        .serve(Listener::bind(target).expect("the socket"), None)
        .expect("a server");
    end_with_parent();
    loop {
        expert.next_batch(Duration::from_secs(1));
    }
}

fn serve_aggregator(target: &str, experts: &[String]) {
    let listener = Listener::bind(target).expect("the socket");
    let settings = Settings::default();
    let aggregator = Aggregator::start("agg", "0", limits(), settings, listener, None);
    let aggregator = aggregator.expect("an aggregator");
    aggregator.set_experts(experts);
    end_with_parent();
    loop {
        std::thread::park();
    }
}

/// Sends back what comes: a length of four bytes, and so many.
fn serve_sockets(path: &str) {
    let listener = UnixListener::bind(path).expect("the socket");
    let (mut stream, _) = listener.accept().expect("the parent");
    let mut frame = vec![];
    while read_frame(&mut stream, &mut frame).is_ok() && stream.write_all(&frame).is_ok() {}
}

/// The length and what follows.
fn read_frame(stream: &mut UnixStream, frame: &mut Vec<u8>) -> std::io::Result<()> {
    frame.resize(4, 0);
    stream.read_exact(frame)?;
    let bytes = u32::from_le_bytes([frame[0], frame[1], frame[2], frame[3]]);
    frame.resize(4 + bytes as usize, 0);
    stream.read_exact(&mut frame[4..])
}

fn dial(path: &std::path::Path) -> UnixStream {
    for _ in 0..500 {
        match UnixStream::connect(path) {
            Ok(stream) => return stream,
            Err(_) => std::thread::sleep(Duration::from_millis(10)),
        }
    }
    panic!("nobody listens at {}", path.display());
}

/// The parent holds the other end of the standard input.
fn end_with_parent() {
    std::thread::spawn(|| {
        let _ = std::io::stdin().read(&mut [0]);
        std::process::exit(0);
    });
}

fn limits() -> combiner::Limits {
    combiner::Limits {
        open_calls: 1024,
        answer_bytes: 63 << 20,
        held_bytes: 2048 << 20,
        early_bytes: 256 << 20,
        early_seconds: 30.0,
        closed_calls: 4096,
    }
}

fn start(arguments: &[&str]) -> Child {
    let program = std::env::current_exe().expect("this program");
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::piped());
    command.spawn().expect("a process")
}

fn measure(calls: usize, groups: usize) {
    let place = std::env::temp_dir().join(format!("moe-layer-call-{}", std::process::id()));
    std::fs::create_dir_all(&place).expect("a directory for the sockets");
    let target = |name: &str| format!("unix:{}", place.join(name).display());
    let experts: Vec<String> = (0..groups)
        .map(|group| target(&format!("e{group}")))
        .collect();
    let at = target("aggregator");
    let mut processes: Vec<Child> = experts
        .iter()
        .map(|expert| start(&["expert", expert]))
        .collect();
    let mut arguments = vec!["aggregator", &at];
    arguments.extend(experts.iter().map(String::as_str));
    processes.push(start(&arguments));

    let bare: Vec<_> = (0..groups).map(|at| place.join(format!("s{at}"))).collect();
    for path in &bare {
        processes.push(start(&["sockets", &path.display().to_string()]));
    }
    let sockets = bare.iter().map(|path| dial(path)).collect();

    let driver = Driver::new("router", || {}).expect("a runtime");
    let router = Router::new("bench", Some(limits()), Settings::default(), driver);
    router.set_endpoints(&experts, std::slice::from_ref(&at));
    println!("{groups} groups, {calls} calls a cell, {} cores", cores());
    println!(
        "{:<10} {:>6} {:>5} {:>8} {:>8} {:>8} {:>9}",
        "combiner", "tokens", "", "p50 us", "p90 us", "cpu us", "cpu/wall"
    );
    let pids: Vec<u32> = processes
        .iter()
        .map(Child::id)
        .chain([std::process::id()])
        .collect();
    let mut bench = Bench {
        router: &router,
        experts: &experts,
        pids,
        next: 1,
        dice: 7,
        cold: vec![1; COLD_BYTES],
        warming: true,
        sockets,
    };
    for tokens in [1, 16, 256, 2048] {
        for way in [Way::Sockets, Way::Router, Way::Process(&at)] {
            for cold in [false, true] {
                bench.cell(tokens, way, cold, (calls * 16 / tokens.max(16)).max(20));
            }
        }
    }
    drop(bench);
    router.close();
    for process in &mut processes {
        drop(process.stdin.take());
        let _ = process.wait();
    }
    let _ = std::fs::remove_dir_all(&place);
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(0, usize::from)
}

/// What is measured, and where the sums are made.
#[derive(Clone, Copy)]
enum Way<'a> {
    Sockets,
    Router,
    Process(&'a str),
}

impl Way<'_> {
    fn name(self) -> &'static str {
        match self {
            Way::Sockets => "sockets",
            Way::Router => "router",
            Way::Process(_) => "process",
        }
    }
}

struct Bench<'a> {
    router: &'a Router,
    experts: &'a [String],
    pids: Vec<u32>,
    next: u64,
    dice: u64,
    cold: Vec<u64>,
    warming: bool,
    sockets: Vec<UnixStream>,
}

impl Bench<'_> {
    fn cell(&mut self, tokens: usize, way: Way<'_>, cold: bool, calls: usize) {
        self.warming = true;
        for _ in 0..50 {
            self.once(tokens, way);
        }
        self.warming = false;
        let (begun, cpu) = (Instant::now(), self.cpu_seconds());
        let (mut times, mut other) = (Vec::with_capacity(calls), Duration::ZERO);
        for _ in 0..calls {
            if cold {
                other += self.work();
            }
            times.push(self.once(tokens, way).as_secs_f64() * 1e6);
        }
        let wall = (begun.elapsed() - other).as_secs_f64();
        let cpu = self.cpu_seconds() - cpu - other.as_secs_f64();
        times.sort_by(f64::total_cmp);
        println!(
            "{:<10} {tokens:>6} {:>5} {:>8.0} {:>8.0} {:>8.0} {:>9.2}",
            way.name(),
            if cold { "cold" } else { "hot" },
            times[calls / 2],
            times[calls * 9 / 10],
            cpu / calls as f64 * 1e6,
            cpu / wall
        );
    }

    /// A call's time.
    fn once(&mut self, tokens: usize, way: Way<'_>) -> Duration {
        let aggregator = match way {
            Way::Sockets => return self.echo(tokens),
            Way::Router => None,
            Way::Process(at) => Some(at),
        };
        let (outcome, want, time) = self.call(tokens, aggregator);
        if self.warming {
            check(&outcome, &want);
        }
        assert!(matches!(outcome, Outcome::Combined { .. }), "{outcome:?}");
        time
    }

    /// The rows of a call to their groups' sockets and back.
    fn echo(&mut self, tokens: usize) -> Duration {
        let (sent, _) = self.route(tokens);
        let frames: Vec<Vec<u8>> = sent
            .iter()
            .map(|index| {
                let bytes = index.len() * HIDDEN * 2;
                [&(bytes as u32).to_le_bytes()[..], &vec![1; bytes]].concat()
            })
            .collect();
        let mut parts: Vec<(&mut UnixStream, &Vec<u8>)> = self
            .sockets
            .iter_mut()
            .zip(&frames)
            .filter(|(_, frame)| frame.len() > 4)
            .collect();
        let begun = Instant::now();
        for (stream, frame) in &mut parts {
            stream.write_all(frame).expect("a process that reads");
        }
        let mut got = vec![];
        for (stream, frame) in &mut parts {
            read_frame(stream, &mut got).expect("a process that answers");
            assert!(&got == *frame);
        }
        begun.elapsed()
    }

    /// Reads other memory for a while, as attention would.
    fn work(&mut self) -> Duration {
        let begun = Instant::now();
        let mut sum = 0u64;
        while begun.elapsed() < COLD_WORK {
            let part = self.cold.len() / 64;
            let at = (sum as usize ^ begun.elapsed().as_nanos() as usize) % 64 * part;
            sum = self.cold[at..at + part]
                .iter()
                .fold(sum, |sum, word| sum.wrapping_add(*word));
        }
        std::hint::black_box(sum);
        begun.elapsed()
    }

    fn roll(&mut self, bound: usize) -> usize {
        self.dice = self
            .dice
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        ((self.dice >> 33) % bound as u64) as usize
    }

    /// The tokens that each group gets, and how many groups each token goes to.
    fn route(&mut self, tokens: usize) -> (Vec<Vec<i32>>, Vec<usize>) {
        let groups = self.experts.len();
        let mut sent: Vec<Vec<i32>> = vec![vec![]; groups];
        let mut times_sent = vec![0; tokens];
        for (token, count) in times_sent.iter_mut().enumerate() {
            let mut chosen = Vec::with_capacity(EXPERTS_PER_TOKEN);
            while chosen.len() < EXPERTS_PER_TOKEN.min(groups) {
                let group = self.roll(groups);
                if !chosen.contains(&group) {
                    chosen.push(group);
                    sent[group].push(token as i32);
                    *count += 1;
                }
            }
        }
        (sent, times_sent)
    }

    /// One layer call from the rows to the sums. Returns the answer, how often each token was sent, and the time.
    fn call(&mut self, tokens: usize, aggregator: Option<&str>) -> (Outcome, Vec<usize>, Duration) {
        let key = Key {
            call_id: self.next,
            layer: 0,
        };
        self.next += 1;
        let (sent, times_sent) = self.route(tokens);
        // 1.0 in bfloat16, little-endian.
        let hidden = [0x80u8, 0x3f].repeat(tokens * HIDDEN);
        let begun = Instant::now();
        let deadline = monotonic() + 30.0;
        let parts: Vec<(usize, &Vec<i32>)> = sent
            .iter()
            .enumerate()
            .filter(|(_, index)| !index.is_empty())
            .collect();
        let dispatches = parts.iter().map(|&(group, index)| Dispatch {
            endpoint: self.experts[group].clone(),
            request: request(key, group, index, &hidden, deadline),
        });
        let plan = || plan(key, tokens, deadline, &parts);
        let outcome = self.router.exchange(
            key,
            plan,
            dispatches.collect(),
            aggregator,
            deadline,
            deadline,
        );
        let time = begun.elapsed();
        match outcome {
            // The streams are being opened.
            Outcome::Incomplete(_) | Outcome::AggregatorLost(_) if self.warming => {
                self.router.abandon(key);
                std::thread::sleep(Duration::from_millis(20));
                self.call(tokens, aggregator)
            }
            outcome => (outcome, times_sent, time),
        }
    }

    /// CPU seconds of all processes, threads that have ended not counted.
    fn cpu_seconds(&self) -> f64 {
        let thread = |path: std::path::PathBuf| {
            let text = std::fs::read_to_string(path.join("schedstat")).unwrap_or_default();
            text.split(' ')
                .next()
                .and_then(|ns| ns.parse::<f64>().ok())
                .unwrap_or(0.0)
        };
        let process = |pid: &u32| {
            let threads = std::fs::read_dir(format!("/proc/{pid}/task"));
            threads
                .into_iter()
                .flatten()
                .flatten()
                .map(|entry| thread(entry.path()))
                .sum::<f64>()
        };
        self.pids.iter().map(process).sum::<f64>() / 1e9
    }
}

fn request(key: Key, group: usize, index: &[i32], hidden: &[u8], deadline: f64) -> DispatchRequest {
    let width = HIDDEN * 2;
    let mut rows = Vec::with_capacity(index.len() * width);
    for &token in index {
        rows.extend_from_slice(&hidden[token as usize * width..(token as usize + 1) * width]);
    }
    let places: Vec<i32> = (0..index.len() as i32).collect();
    DispatchRequest {
        call_id: key.call_id,
        layer: key.layer,
        part: group as u32,
        aggregator: String::new(),
        timeout_us: timeout_us(Some(deadline)),
        rows: Some(Tensor {
            dtype: Dtype::Bfloat16 as i32,
            shape: vec![index.len() as u32, HIDDEN as u32],
            data: rows.into(),
        }),
        slot_rows: Some(int32_message(&places)),
        slot_experts: Some(int32_message(&vec![group as i32; index.len()])),
        slot_weights: Some(Tensor {
            dtype: Dtype::Float32 as i32,
            shape: vec![index.len() as u32],
            data: 1f32.to_le_bytes().repeat(index.len()).into(),
        }),
        partial_dtype: 0,
    }
}

fn plan(key: Key, tokens: usize, deadline: f64, parts: &[(usize, &Vec<i32>)]) -> Plan {
    let planned = |&(group, index): &(usize, &Vec<i32>)| PlannedPart {
        part: group as u32,
        token_index: index.clone(),
        row_weights: None,
    };
    Plan {
        key,
        tokens,
        hidden: HIDDEN,
        dtype: Dtype::Bfloat16,
        policy: MissingPolicy::Wait,
        deadline: Some(deadline),
        parts: parts.iter().map(planned).collect(),
    }
}

/// Every row is as many ones as groups it was sent to.
fn check(outcome: &Outcome, want: &[usize]) {
    let Outcome::Combined { rows, missing } = outcome else {
        panic!("{outcome:?}");
    };
    assert!(missing.is_empty(), "{missing:?}");
    for (row, &want) in rows.data.chunks_exact(HIDDEN * 2).zip(want) {
        for two in row.chunks_exact(2) {
            let value = f32::from_bits(u32::from(u16::from_le_bytes([two[0], two[1]])) << 16);
            assert_eq!(value, want as f32);
        }
    }
}
