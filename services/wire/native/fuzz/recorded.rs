//! What a router, two experts and an aggregator really say to each other, recorded between them: gRPC's frames of all
//! three streams, both ways, as inputs of the harness.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body::Frame;
use moe_wire_native::aggregator::Aggregator;
use moe_wire_native::api::aggregator::MissingPolicy;
use moe_wire_native::api::expert::DispatchRequest;
use moe_wire_native::api::tensor::{Dtype, Tensor};
use moe_wire_native::combiner::{Key, Plan, PlannedPart};
use moe_wire_native::driver::{monotonic, Driver};
use moe_wire_native::expert::{Expert, Kernel};
use moe_wire_native::link::connect;
use moe_wire_native::names::{COLLECT, COMBINE, DISPATCH};
use moe_wire_native::router::{timeout_us, Dispatch, Outcome, Router};
use moe_wire_native::routing::{cut, Lot, Routing};
use moe_wire_native::serve::{Answer, Listener, Request, Route, Served, Server};
use moe_wire_native::settings::Settings;
use moe_wire_native::tensors::int32_message;
use tonic::body::Body;
use tonic::Status;
use tower::ServiceExt;

use crate::harness::{bounds, checked, limits, EXPERTS, HIDDEN, LAYER};

const PATIENCE: Duration = Duration::from_secs(20);
const CALL_S: f64 = 5.0;
/// The streams in the order of the harness's kinds: what is asked on the first, second and third, what is answered.
const KINDS: [(&str, u8, u8); 3] = [(DISPATCH, 0, 3), (COMBINE, 1, 2), (COLLECT, 4, 5)];
/// How the bytes arrive in the harness: whole, and in pieces that end within a frame's head.
const PIECES: [u8; 2] = [255, 3];

/// Bytes by the harness's kind: each stream has its own.
type Tape = Arc<Mutex<Vec<u8>>>;
type Tapes = Arc<Mutex<Vec<(u8, Tape)>>>;

/// Layer calls of every policy, of one to nine rows, and one that is abandoned; as inputs.
pub fn inputs() -> Vec<Vec<u8>> {
    let folder = std::env::temp_dir().join(format!("moe-wire-record-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a directory");
    let at = |name: &str| format!("unix:{}", folder.join(name).display());
    let taps = Taps::new();
    // Expert 5 and 7 in one process, 2 in the other; the harness's experts hold all three.
    let groups: Vec<Group> = (0..2)
        .map(|n| Group::start(&at(&format!("e{n}"))))
        .collect();
    let experts: Vec<String> = (0..2).map(|n| at(&format!("e{n}-tap"))).collect();
    for (group, tap) in groups.iter().zip(&experts) {
        taps.listen(tap, &group.target);
    }
    let listener = Listener::bind(&at("a")).expect("a socket");
    let aggregator = Aggregator::start("agg", "1", bounds(), Settings::default(), listener, None)
        .expect("an aggregator");
    taps.listen(&at("a-tap"), &at("a"));
    aggregator.set_experts(&experts);
    talk(&experts, &at("a-tap"));
    drop((aggregator, groups));
    let recorded = taps.end();
    std::fs::remove_dir_all(&folder).expect("the directory is ours");
    recorded
}

fn talk(experts: &[String], aggregator: &str) {
    let driver = Driver::new("router", || {}).expect("a runtime");
    let router = Router::new("router-0", None, Settings::default(), driver);
    router.set_endpoints(experts, &[aggregator.to_string()]);
    let policies = [
        MissingPolicy::Wait,
        MissingPolicy::Renormalise,
        MissingPolicy::Fail,
    ];
    for (call, (tokens, policy)) in [1, 2, 9].into_iter().zip(policies).enumerate() {
        // 9 is the call that the harness plans, 0 and 1 its parts.
        let key = Key {
            call_id: 9 + call as u64,
            layer: LAYER,
        };
        run(&router, key, tokens, policy, experts, aggregator);
    }
    let key = Key {
        call_id: 20,
        layer: LAYER,
    };
    let (plan, _) = call(key, 2, MissingPolicy::Wait, experts);
    router.exchange(
        key,
        || plan,
        vec![],
        Some(aggregator),
        monotonic() + CALL_S,
        monotonic(),
    );
    router.give_up(key, 1, "no replica has it".into());
    router.abandon(key);
    // An expert that the call names does not hold is told so in a receipt.
    let key = Key {
        call_id: 21,
        layer: LAYER + 1,
    };
    let (plan, parts) = call(key, 1, MissingPolicy::Fail, experts);
    let until = monotonic() + CALL_S;
    let refused = router.exchange(key, || plan, parts, Some(aggregator), until, until);
    assert!(matches!(refused, Outcome::Incomplete(_)), "{refused:?}");
    router.close();
}

/// To its answer; parts whose streams are not open yet are sent again, and the call with them when the aggregator's is not.
fn run(
    router: &Router,
    key: Key,
    tokens: usize,
    policy: MissingPolicy,
    experts: &[String],
    aggregator: &str,
) {
    let begun = Instant::now();
    let (mut plan, mut parts) = call(key, tokens, policy, experts);
    loop {
        assert!(begun.elapsed() < PATIENCE, "no answer to {key:?}");
        let until = monotonic() + CALL_S;
        let outcome = router.exchange(key, || plan, parts, Some(aggregator), until, until);
        let wanted = match outcome {
            Outcome::Combined { .. } => return,
            Outcome::Incomplete(failures) => failures.iter().map(|failure| failure.part).collect(),
            Outcome::AggregatorLost(_) => vec![0, 1],
            Outcome::CallFailed { message, .. } => panic!("{message}"),
        };
        std::thread::sleep(Duration::from_millis(5));
        (plan, parts) = call(key, tokens, policy, experts);
        parts.retain(|dispatch| wanted.contains(&dispatch.request.part));
    }
}

/// Every token goes to all three experts, two of which are in part 1.
fn call(
    key: Key,
    tokens: usize,
    policy: MissingPolicy,
    experts: &[String],
) -> (Plan, Vec<Dispatch>) {
    let index: Vec<u8> = (0..tokens)
        .flat_map(|_| {
            EXPERTS
                .into_iter()
                .flat_map(|expert| i64::from(expert).to_le_bytes())
        })
        .collect();
    let weights: Vec<u8> = (0..tokens * EXPERTS.len())
        .flat_map(|slot| (1.0 / (slot + 2) as f32).to_le_bytes())
        .collect();
    let lots = cut(Routing {
        index: &index,
        topk: EXPERTS.len(),
        weights: &weights,
        weights_dtype: Dtype::Float32,
        part_of_expert: &[9, 9, 0, 9, 9, 1, 9, 1],
    })
    .expect("a routing that can be");
    let planned = lots.iter().map(|lot| PlannedPart {
        part: lot.part,
        token_index: lot.token_index.clone(),
        row_weights: (policy == MissingPolicy::Renormalise)
            .then(|| lot.row_weights(Dtype::Float32)),
    });
    let plan = Plan {
        key,
        tokens,
        hidden: HIDDEN,
        dtype: Dtype::Bfloat16,
        policy,
        deadline: Some(monotonic() + CALL_S),
        parts: planned.collect(),
    };
    let dispatches = lots.iter().map(|lot| Dispatch {
        endpoint: experts[lot.part as usize].clone(),
        request: request(key, lot),
    });
    (plan, dispatches.collect())
}

fn request(key: Key, lot: &Lot) -> DispatchRequest {
    let rows = lot.token_index.len();
    // 1.0, 2.0 and their like in bfloat16.
    let data: Vec<u8> = (0..rows * HIDDEN)
        .flat_map(|at| [0, 0x3f + (at % 3) as u8])
        .collect();
    DispatchRequest {
        call_id: key.call_id,
        layer: key.layer,
        part: lot.part,
        aggregator: String::new(),
        timeout_us: timeout_us(Some(monotonic() + CALL_S)),
        rows: Some(Tensor {
            dtype: Dtype::Bfloat16 as i32,
            shape: vec![rows as u32, HIDDEN as u32],
            data: data.into(),
        }),
        slot_rows: Some(int32_message(&lot.slot_rows)),
        slot_experts: Some(int32_message(&lot.slot_experts)),
        slot_weights: Some(Tensor {
            dtype: Dtype::Float32 as i32,
            shape: vec![lot.slot_experts.len() as u32],
            data: lot.slot_weights.clone().into(),
        }),
        partial_dtype: Dtype::Float32 as i32,
    }
}

/// An expert with its compute thread.
struct Group {
    target: String,
    expert: Arc<Expert>,
    thread: Option<(std::sync::mpsc::Sender<()>, std::thread::JoinHandle<()>)>,
}

impl Group {
    fn start(target: &str) -> Group {
        let driver = Driver::new("expert", || {}).expect("a runtime");
        let expert = Expert::new(target, limits(), Settings::default(), driver);
        let kernel = Kernel {
            function: checked,
            handle: 0,
            threads: 1,
        };
        // SAFETY: `checked` keeps the promise and lives for ever.
        unsafe { expert.set_kernel(LAYER, kernel) };
        expert
            .serve(Listener::bind(target).expect("a socket"), None)
            .expect("a server");
        let (stop, stopped) = std::sync::mpsc::channel();
        let computing = expert.clone();
        let compute = move || {
            while stopped.try_recv().is_err() {
                let handed_out = computing.next_batch(Duration::from_millis(5));
                assert!(handed_out.is_none(), "the kernel takes every batch");
            }
        };
        let thread = Some((stop, std::thread::spawn(compute)));
        Group {
            target: target.to_string(),
            expert,
            thread,
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if let Some((stop, thread)) = self.thread.take() {
            let _ = stop.send(());
            thread.join().expect("a compute thread that ends");
        }
        self.expert.close();
    }
}

/// Servers between a peer and the one it means to talk to.
struct Taps {
    runtime: tokio::runtime::Handle,
    end: tokio::sync::oneshot::Sender<()>,
    thread: std::thread::JoinHandle<()>,
    tapes: Tapes,
    servers: Mutex<Vec<Server>>,
}

impl Taps {
    fn new() -> Taps {
        let mut building = tokio::runtime::Builder::new_current_thread();
        let runtime = building
            .enable_io()
            .enable_time()
            .build()
            .expect("a runtime");
        let handle = runtime.handle().clone();
        let (end, ended) = tokio::sync::oneshot::channel();
        let thread = std::thread::spawn(move || {
            let _ = runtime.block_on(ended);
            runtime.shutdown_background();
        });
        Taps {
            runtime: handle,
            end,
            thread,
            tapes: Tapes::default(),
            servers: Mutex::default(),
        }
    }

    fn listen(&self, at: &str, target: &str) {
        let routes =
            KINDS.map(|(path, asked, answered)| (path, self.route(target, asked, answered)));
        let served = Served {
            routes: routes.into(),
            back_end: None,
        };
        let listener = Listener::bind(at).expect("a socket");
        let server = Server::start(listener, served, &Settings::default(), &self.runtime);
        self.servers.lock().unwrap().push(server.expect("a server"));
    }

    /// Hands a call on as it is, and keeps what passes.
    fn route(&self, target: &str, asked: u8, answered: u8) -> Route {
        let (target, tapes) = (target.to_string(), self.tapes.clone());
        Arc::new(move |request: Request| -> Answer {
            let (target, tapes) = (target.clone(), tapes.clone());
            Box::pin(async move {
                let request = request.map(|body| Recording::of(body, asked, &tapes));
                match connect(&target, &Settings::default()).await {
                    Err(reason) => Status::unavailable(reason).into_http(),
                    Ok(channel) => match channel.oneshot(request).await {
                        Ok(response) => response.map(|body| Recording::of(body, answered, &tapes)),
                        Err(error) => Status::unavailable(error.to_string()).into_http(),
                    },
                }
            })
        })
    }

    /// Every stream that said something, one input for each way to arrive.
    fn end(self) -> Vec<Vec<u8>> {
        drop(self.servers);
        let _ = self.end.send(());
        self.thread.join().expect("a thread that ends");
        let mut by_content = BTreeMap::new();
        for (kind, tape) in self.tapes.lock().unwrap().iter() {
            let tape = tape.lock().unwrap();
            for pieces in PIECES.into_iter().filter(|_| !tape.is_empty()) {
                by_content.insert([&[*kind, pieces], &tape[..]].concat(), ());
            }
        }
        by_content.into_keys().collect()
    }
}

/// A body that is kept as it passes.
struct Recording {
    body: Body,
    tape: Tape,
}

impl Recording {
    fn of(body: Body, kind: u8, tapes: &Tapes) -> Body {
        let tape = Tape::default();
        tapes.lock().unwrap().push((kind, tape.clone()));
        Body::new(Recording { body, tape })
    }
}

impl http_body::Body for Recording {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let polled = Pin::new(&mut self.body).poll_frame(context);
        if let Poll::Ready(Some(Ok(frame))) = &polled {
            if let Some(data) = frame.data_ref() {
                self.tape.lock().unwrap().extend_from_slice(data);
            }
        }
        polled
    }
}
