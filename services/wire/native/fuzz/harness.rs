//! Bytes as a peer may send them, through everything that reads them: gRPC's frames, the messages, the checks, and the
//! code that trusts the checks. Shared by the fuzz target and by the program that needs no fuzzer (`fuzz_frames`).
//!
//! An input is one byte for the stream's kind, one for how the bytes arrive in pieces, and the bytes.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::ffi::{c_char, c_void};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http_body::Frame;
use moe_wire_native::aggregator::plans::read_plan;
use moe_wire_native::api::aggregator::{
    combine_request::Kind as Ask, combine_response::Kind as Answer, CombineRequest,
    CombineResponse, Hello, MissingPolicy, Plan, PlannedPart,
};
use moe_wire_native::api::expert::{
    collect_response, dispatch_response::Kind as Word, CollectRequest, CollectResponse,
    DispatchRequest, DispatchResponse, Partial, Receipt,
};
use moe_wire_native::api::tensor::{Dtype, Tensor};
use moe_wire_native::codec::Proto;
use moe_wire_native::combiner::{self, Combiner, Event, Key};
use moe_wire_native::expert::accept::read_dispatch;
use moe_wire_native::expert::kernel::{compute, Kernel};
use moe_wire_native::expert::Limits;
use moe_wire_native::ledger::{Kind, Ledger};
use moe_wire_native::queue::Queue;
use moe_wire_native::router::failure_of;
use moe_wire_native::tensors::{int32_message, item_size, Rows};
use prost::Message;
use tonic::codec::{Codec, Streaming};

pub const HIDDEN: usize = 4;
pub const LAYER: u32 = 1;
pub const EXPERTS: [i32; 3] = [2, 5, 7];
const LONGEST: usize = 1 << 16;

/// Reads one input. Panics when something that was checked is not as the check says.
pub fn read(input: &[u8]) {
    let [kind, pieces, bytes @ ..] = input else {
        return;
    };
    let body = || Body {
        left: Bytes::copy_from_slice(bytes),
        piece: usize::from(*pieces).max(1),
    };
    match kind % 6 {
        0 => dispatches(body()),
        1 => combines(body(), *pieces),
        2 => decode::<CombineResponse>(body())
            .into_iter()
            .for_each(answered),
        3 => receipts(body()),
        4 => drop(decode::<CollectRequest>(body())),
        _ => parts_alone(body()),
    }
}

/// A request's body that arrives in pieces.
struct Body {
    left: Bytes,
    piece: usize,
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.left.is_empty() {
            return Poll::Ready(None);
        }
        let piece = self.piece.min(self.left.len());
        let piece = self.left.split_to(piece);
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }
}

/// The messages up to the first that is none.
fn decode<M: Message + Default + Send + 'static>(body: Body) -> Vec<M> {
    let decoder = Proto::<M, M>::default().decoder();
    let mut stream = Streaming::new_request(decoder, body, None, Some(LONGEST));
    let mut context = Context::from_waker(Waker::noop());
    let mut messages = vec![];
    loop {
        match tokio_stream::Stream::poll_next(Pin::new(&mut stream), &mut context) {
            Poll::Ready(Some(Ok(message))) => messages.push(message),
            Poll::Ready(_) => return messages,
            Poll::Pending => panic!("a body that is there is not waited for"),
        }
    }
}

/// Of an expert that holds all three.
pub fn limits() -> Limits {
    Limits {
        hidden: HIDDEN,
        dtype: Dtype::Bfloat16,
        experts_by_layer: BTreeMap::from([(LAYER, EXPERTS.to_vec())]),
        max_rows: 64,
        max_queued_rows: 100,
        max_batch_rows: 50,
    }
}

fn dispatches(body: Body) {
    let limits = limits();
    let mut queue = Queue::new(limits.max_queued_rows, limits.max_batch_rows);
    for message in decode::<DispatchRequest>(body) {
        if let Ok(item) = read_dispatch(message, &limits, LONGEST, 1.0, 7) {
            assert_eq!(item.rows.data.len(), item.rows.len() * HIDDEN * 2);
            assert!((1..=limits.max_rows).contains(&item.rows.len()));
            queue.offer(item, 1.0);
        }
    }
    let kernel = Kernel {
        function: checked,
        handle: 0,
        threads: 1,
    };
    loop {
        let (items, _) = queue.take(2.0);
        if items.is_empty() {
            break;
        }
        let partials = compute(&kernel, &items, HIDDEN).expect("slots that were checked");
        for (item, partial) in items.iter().zip(partials) {
            assert_eq!(
                partial.len(),
                item.rows.len() * HIDDEN * item_size(item.partial_dtype)
            );
        }
    }
    assert_eq!(queue.queued_rows, 0);
}

/// Takes everything that the C entry may take, and writes all that it must write.
pub unsafe extern "C" fn checked(
    _handle: *const c_void,
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
    _threads: i32,
    error: *mut c_char,
    _error_size: i64,
) -> i32 {
    let size = |dtype: i32| item_size(Dtype::try_from(dtype).expect("a type"));
    let sum = |bytes: &[u8]| bytes.iter().fold(0u8, |sum, byte| sum.wrapping_add(*byte));
    let (rows_read, slots) = (n_rows as usize, n_slots as usize);
    assert_eq!(row_stride, HIDDEN as i64);
    let mut seen = sum(std::slice::from_raw_parts(
        rows.cast(),
        rows_read * HIDDEN * 2,
    ));
    seen ^= sum(std::slice::from_raw_parts(
        slot_weights.cast(),
        slots * size(weights_dtype),
    ));
    let mut before = 0;
    for slot in 0..slots {
        let (row, expert) = (*slot_rows.add(slot), *slot_experts.add(slot));
        if row < before || i64::from(row) >= n_rows || !EXPERTS.contains(&expert) {
            // A panic would not get out of a C function: the caller panics.
            let words = format!("row {row} after {before} of {n_rows}, expert {expert}\0");
            std::ptr::copy_nonoverlapping(words.as_ptr().cast(), error, words.len());
            return 1;
        }
        before = row;
    }
    let bytes = rows_read * HIDDEN * size(partial_dtype);
    std::ptr::write_bytes(partial.cast::<u8>(), seen, bytes);
    0
}

pub fn bounds() -> combiner::Limits {
    combiner::Limits {
        open_calls: 8,
        answer_bytes: 1 << 14,
        held_bytes: 1 << 14,
        early_bytes: 1 << 12,
        early_seconds: 1.0,
        closed_calls: 8,
    }
}

/// Plans; then the same bytes once more as parts, which meet the plans where an input is both.
fn combines(body: Body, owner: u8) {
    let mut combiner = Combiner::new(bounds());
    let again = Body {
        left: body.left.clone(),
        piece: body.piece,
    };
    let mut events = vec![];
    let mut keys = vec![];
    for message in decode::<CombineRequest>(body) {
        match message.kind {
            Some(Ask::Plan(plan)) => {
                keys.push(Key {
                    call_id: plan.call_id,
                    layer: plan.layer,
                });
                if let Ok(plan) = read_plan(plan, 1.0) {
                    events.extend(combiner.plan(u64::from(owner), plan));
                }
            }
            Some(Ask::GiveUp(given)) => {
                let key = Key {
                    call_id: given.call_id,
                    layer: given.layer,
                };
                events.extend(combiner.give_up(key, given.part, given.reason));
            }
            Some(Ask::Abandon(gone)) => combiner.abandon(Key {
                call_id: gone.call_id,
                layer: gone.layer,
            }),
            _ => {}
        }
        for (at, key) in keys.iter().enumerate() {
            let values = [at as f32 + 0.5, f32::MAX, f32::NAN][usize::from(owner) % 3];
            let rows = Rows {
                dtype: Dtype::Float32,
                shape: vec![1, HIDDEN as u32],
                data: bytes_of(&[values; HIDDEN]),
            };
            events.extend(combiner.part(*key, 0, rows, 1.5));
        }
    }
    take_parts(&mut combiner, again, &mut events);
    finish(combiner, events);
}

fn parts_alone(body: Body) {
    let mut combiner = Combiner::new(bounds());
    let plan = plan_message(2, MissingPolicy::Renormalise);
    let mut events = combiner.plan(1, read_plan(plan, 1.0).expect("a good plan"));
    take_parts(&mut combiner, body, &mut events);
    finish(combiner, events);
}

fn take_parts(combiner: &mut Combiner, body: Body, events: &mut Vec<Event>) {
    for message in decode::<CollectResponse>(body) {
        if let Some(collect_response::Kind::Partial(partial)) = message.kind {
            let key = Key {
                call_id: partial.call_id,
                layer: partial.layer,
            };
            events.extend(match Rows::read(partial.rows, "rows") {
                Ok(rows) => combiner.part(key, partial.part, rows, 2.0),
                Err(reason) => combiner.broken_part(key, partial.part, reason),
            });
        }
    }
}

/// Every answer is as large as it says and finite; nothing is held when all is over.
fn finish(mut combiner: Combiner, mut events: Vec<Event>) {
    assert!(combiner.held_bytes() <= bounds().held_bytes + bounds().early_bytes);
    events.extend(combiner.expire(f64::MAX));
    for event in events {
        if let Event::Answered { rows, .. } = event {
            let elements: u64 = rows.shape.iter().map(|&extent| u64::from(extent)).product();
            assert_eq!(
                rows.data.len() as u64,
                elements * item_size(rows.dtype) as u64
            );
            assert!(moe_wire_native::sums::largest(&rows.data, rows.dtype).is_finite());
        }
    }
    combiner.forget_owner(1);
    for owner in 0..=255 {
        combiner.forget_owner(owner);
    }
    assert_eq!((combiner.open_calls(), combiner.held_bytes()), (0, 0));
}

fn answered(message: CombineResponse) {
    if let Some(Answer::Combined(combined)) = message.kind {
        if let Ok(rows) = Rows::read(combined.rows, "combined.rows") {
            let elements: u64 = rows.shape.iter().map(|&extent| u64::from(extent)).product();
            assert_eq!(
                rows.data.len() as u64,
                elements * item_size(rows.dtype) as u64
            );
        }
    }
}

/// Receipts of two parts that were sent to one expert: each part fails once at most, whatever is said of it.
fn receipts(body: Body) {
    const AT: &str = "unix:/e0";
    let mut ledger = Ledger::default();
    ledger.sent(0, AT, None);
    ledger.sent(1, AT, None);
    let mut failed = vec![];
    for message in decode::<DispatchResponse>(body) {
        match message.kind {
            Some(Word::Opened(opened)) => {
                ledger.opened(AT, &opened.instance);
                failed.extend(ledger.source_lost(&opened.instance, "its stream broke"));
            }
            Some(Word::Receipt(receipt)) => {
                let part = receipt.part;
                failed.extend(ledger.receipt(AT, part, failure_of(receipt, AT)));
            }
            None => {}
        }
    }
    failed.extend(ledger.stream_lost(AT, Kind::StreamLost, "it is gone"));
    let mut parts: Vec<u32> = failed.iter().map(|failure| failure.part).collect();
    parts.sort_unstable();
    assert!(
        parts.len() <= 2 && parts.iter().all(|part| *part < 2),
        "{parts:?}"
    );
    assert!(parts.windows(2).all(|pair| pair[0] != pair[1]), "{parts:?}");
    assert!(failed.iter().all(|failure| failure.retry_after_s >= 0.0));
}

fn bytes_of(values: &[f32]) -> Bytes {
    values
        .iter()
        .flat_map(|value| value.to_le_bytes())
        .collect::<Vec<u8>>()
        .into()
}

fn tensor(dtype: Dtype, shape: &[u32]) -> Option<Tensor> {
    let elements: u32 = shape.iter().product();
    let data: Vec<u8> = (0..elements as usize * item_size(dtype))
        .map(|at| (at % 61) as u8)
        .collect();
    Some(Tensor {
        dtype: dtype as i32,
        shape: shape.to_vec(),
        data: data.into(),
    })
}

fn plan_message(rows: i32, policy: MissingPolicy) -> Plan {
    let index: Vec<i32> = (0..rows).collect();
    let part = |part| PlannedPart {
        part,
        token_index: Some(int32_message(&index)),
        row_weights: Some(Tensor {
            dtype: Dtype::Float32 as i32,
            shape: vec![rows as u32],
            data: bytes_of(&vec![0.5; rows as usize]),
        }),
    };
    Plan {
        call_id: 9,
        layer: LAYER,
        tokens: rows as u32,
        hidden: HIDDEN as u32,
        dtype: Dtype::Bfloat16 as i32,
        timeout_us: 1_000_000,
        policy: policy as i32,
        parts: vec![part(0), part(1)],
    }
}

/// Inputs that pass all checks, for mutations to start from.
#[allow(dead_code)]
pub fn seeds() -> Vec<Vec<u8>> {
    let dispatch = DispatchRequest {
        call_id: 9,
        layer: LAYER,
        part: 1,
        aggregator: "agg.0".into(),
        timeout_us: 5_000_000,
        rows: tensor(Dtype::Bfloat16, &[3, HIDDEN as u32]),
        slot_rows: Some(int32_message(&[0, 1, 1, 2])),
        slot_experts: Some(int32_message(&[2, 5, 7, 2])),
        slot_weights: tensor(Dtype::Float32, &[4]),
        partial_dtype: Dtype::Float32 as i32,
    };
    let narrow = DispatchRequest {
        slot_weights: tensor(Dtype::Bfloat16, &[4]),
        partial_dtype: 0,
        timeout_us: 0,
        ..dispatch.clone()
    };
    let long = DispatchRequest {
        rows: tensor(Dtype::Bfloat16, &[5, HIDDEN as u32]),
        slot_rows: Some(int32_message(&[0, 0, 1, 1, 2, 3, 3, 3, 4])),
        slot_experts: Some(int32_message(&[2, 5, 7, 2, 5, 7, 2, 5, 7])),
        slot_weights: tensor(Dtype::Float32, &[9]),
        ..dispatch.clone()
    };
    let ask = |kind| CombineRequest { kind: Some(kind) };
    let partial = |part| CollectResponse {
        kind: Some(collect_response::Kind::Partial(Partial {
            call_id: 9,
            layer: LAYER,
            part,
            rows: tensor(Dtype::Float32, &[2, HIDDEN as u32]),
        })),
    };
    let plans = [
        MissingPolicy::Wait,
        MissingPolicy::Renormalise,
        MissingPolicy::Fail,
    ];
    let mut combine = vec![ask(Ask::Hello(Hello { router: "r".into() }))];
    combine.extend(plans.map(|policy| ask(Ask::Plan(plan_message(1, policy)))));
    vec![
        input(0, 255, &[dispatch, narrow]),
        input(0, 3, &[long]),
        input(1, 200, &combine),
        input(
            1,
            7,
            &[ask(Ask::Plan(plan_message(2, MissingPolicy::Fail)))],
        ),
        input(2, 64, &[CombineResponse::default()]),
        input(
            3,
            64,
            &[DispatchResponse {
                kind: Some(Word::Receipt(Receipt::default())),
            }],
        ),
        input(
            4,
            1,
            &[CollectRequest {
                aggregator: "a".into(),
            }],
        ),
        input(5, 33, &[partial(0), partial(1), partial(1)]),
    ]
}

fn input<M: Message>(kind: u8, pieces: u8, messages: &[M]) -> Vec<u8> {
    let mut bytes = vec![kind, pieces];
    for message in messages {
        bytes.push(0);
        bytes.extend((message.encoded_len() as u32).to_be_bytes());
        message.encode(&mut bytes).expect("room");
    }
    bytes
}
