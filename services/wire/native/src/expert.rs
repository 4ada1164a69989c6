//! The expert's end of the wire: accepts dispatches, computes batches itself or hands them out, pushes partials.
//!
//! As moe.wire.grpcio.expert_server. The compute thread drives all streams inside `next_batch`; a caretaker does while it
//! computes outside of the runtime (`driver`). A few rows are computed between two turns of it, by a task (`answer_few`):
//! leaving it, entering it again and waking what waits in there would cost more than such a batch's protocol. Every
//! method may be called from any thread; no lock is held while anything is computed or a peer is written to.

pub mod accept;
pub mod kernel;
mod streams;

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::sync::Notify;

pub use accept::Limits;
pub use kernel::Kernel;

use crate::api::expert::{collect_response, CollectResponse, DispatchRequest, PartStatus, Partial};
use crate::api::tensor::Tensor;
use crate::driver::{monotonic, Driver};
use crate::outbox::{Done, Outbox};
use crate::queue::{Item, Queue};
use crate::serve::{Listener, Served, Server};
use crate::settings::Settings;
use crate::tensors::{item_size, name};
use streams::{Streams, Ticket};

/// Turns that the runtime gets where nothing is waited for.
const MANY: usize = 8;
/// Rows of a batch that a task of the runtime computes: no stream is served meanwhile.
const FEW: usize = 32;
/// For connections to end after their last stream did.
const LAST_WRITES: Duration = Duration::from_secs(1);
/// How long the receipt of a part that was pushed waits for others. Its router has the answer by then and only keeps
/// books; each of its own would be a message written, read and woken for beside every partial, on a core that computes.
const GATHERING: Duration = Duration::from_millis(25);
/// The same for one that tells of rows that wait: a router chooses between replicas by it.
const GATHERING_QUEUED: Duration = Duration::from_millis(1);

/// Work items of one layer, from all routers, ready to compute. taken_at: `monotonic` seconds.
#[derive(Clone, Debug)]
pub struct Batch {
    pub layer: u32,
    pub items: Vec<Item>,
    pub taken_at: f64,
}

impl Batch {
    pub fn rows(&self) -> usize {
        self.items.iter().map(|item| item.rows.len()).sum()
    }
}

/// Figures of the queue; counters since the start. dispatches: taken for a kernel call; waited_s: what those waited, added
/// up; rows_per_s: while computing, of late.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct QueueStats {
    pub queued_rows: usize,
    pub overloaded: u64,
    pub expired: u64,
    pub invalid: u64,
    pub dispatches: u64,
    pub waited_s: f64,
    pub rows_per_s: f64,
}

/// What was computed without the interpreter since the start. slots_by_expert: expert id -> slots.
#[derive(Clone, Debug, Default)]
pub struct Computed {
    pub batches: u64,
    pub rows: u64,
    pub seconds: f64,
    pub slots_by_expert: BTreeMap<i32, u64>,
}

struct State {
    queue: Queue,
    /// Taken by the task, too much for it.
    handed_over: Option<(Batch, Option<Kernel>)>,
    draining: bool,
    streams: Streams,
    kernels: HashMap<u32, Kernel>,
    computed: Computed,
}

pub struct Expert {
    instance: String,
    limits: Limits,
    settings: Settings,
    driver: Arc<Driver>,
    state: Mutex<State>,
    server: Mutex<Option<Server>>,
    /// A dispatch was queued.
    arrived: Arc<Notify>,
    /// Something to compute for whoever called `next_batch`, or the drain has begun.
    work: Notify,
    /// Somebody is inside `next_batch` and drives.
    driven: AtomicBool,
    /// A stream has no unanswered dispatch, or is gone.
    settled: Notify,
    /// A receipt waits for others.
    gather: Arc<Gather>,
    myself: Weak<Expert>,
}

/// What `take` found.
enum Taken {
    Batch(Batch, Option<Kernel>),
    Nothing { draining: bool },
}

impl Expert {
    /// instance: this process's identity, new at each start.
    pub fn new(
        instance: &str,
        limits: Limits,
        settings: Settings,
        driver: Arc<Driver>,
    ) -> Arc<Expert> {
        let queue = Queue::new(limits.max_queued_rows, limits.max_batch_rows);
        let (gather, arrived) = (Arc::new(Gather::default()), Arc::new(Notify::new()));
        Arc::new_cyclic(|myself| {
            driver.spawn(gather_receipts(myself.clone(), gather.clone()));
            driver.spawn(answer_few(myself.clone(), arrived.clone()));
            Expert {
                instance: instance.to_string(),
                limits: limits.ordered(),
                settings,
                driver,
                state: Mutex::new(State {
                    queue,
                    handed_over: None,
                    draining: false,
                    streams: Streams::default(),
                    kernels: HashMap::new(),
                    computed: Computed::default(),
                }),
                server: Mutex::default(),
                arrived,
                work: Notify::new(),
                driven: AtomicBool::new(false),
                settled: Notify::new(),
                gather,
                myself: myself.clone(),
            }
        })
    }

    /// Serves on a listening socket. back_end: the gRPC target that answers every path but the wire's own.
    pub fn serve(&self, listener: Listener, back_end: Option<String>) -> std::io::Result<()> {
        let Some(myself) = self.myself.upgrade() else {
            return Ok(());
        };
        let served = Served {
            routes: streams::routes(&myself, &self.settings),
            back_end,
        };
        let server = Server::start(listener, served, &self.settings, self.driver.handle())?;
        *self.server.lock().unwrap() = Some(server);
        self.driver.nudge();
        Ok(())
    }

    /// From now on batches of a layer are computed inside `next_batch`, on its thread.
    ///
    /// # Safety
    ///
    /// The function is `moe_group_run` or does what that promises, for rows of `limits.hidden` elements of
    /// `limits.dtype` and every expert that the limits name in this layer; it and its handle stay valid until `close`.
    pub unsafe fn set_kernel(&self, layer: u32, kernel: Kernel) {
        self.state.lock().unwrap().kernels.insert(layer, kernel);
    }

    /// Drives all streams until a batch is there that no kernel takes, or for so long; computes others meanwhile. None
    /// after the timeout, or when the drain has begun and nothing waits. Items whose deadline has passed are answered
    /// EXPIRED.
    pub fn next_batch(&self, timeout: Duration) -> Option<Batch> {
        let begun = Instant::now();
        let mut left = timeout;
        loop {
            self.driven.store(true, Ordering::SeqCst);
            let next = self.driver.drive(self.next(left)).flatten();
            self.driven.store(false, Ordering::SeqCst);
            let (batch, kernel) = next?;
            let Some(kernel) = kernel else {
                return Some(batch);
            };
            let draining = self.compute(batch, &kernel);
            left = timeout.saturating_sub(begun.elapsed());
            if left.is_zero() && !draining {
                return None;
            }
        }
    }

    /// Pushes one partial per item ([rows, hidden] in its partial_dtype, row-major) and acknowledges to its router. The
    /// error says which partial does not belong to the batch; nothing is sent then.
    pub fn finish(&self, batch: Batch, partials: Vec<Bytes>) -> Result<(), String> {
        if partials.len() != batch.items.len() {
            let (got, want) = (partials.len(), batch.items.len());
            return Err(format!("got {got} partials for a batch of {want} items"));
        }
        for (item, partial) in batch.items.iter().zip(&partials) {
            let want = item.rows.len() * self.limits.hidden * item_size(item.partial_dtype);
            if partial.len() != want {
                return Err(format!(
                    "partial of layer {}, part {}: got {} bytes, want {want} for {} rows in {}",
                    item.key.layer,
                    item.part,
                    partial.len(),
                    item.rows.len(),
                    name(item.partial_dtype)
                ));
            }
        }
        self.measure(&batch);
        self.push(batch.items, partials);
        Ok(())
    }

    /// Answers FAILED for all items of the batch.
    pub fn fail(&self, batch: Batch, message: &str) {
        for item in batch.items {
            self.answer(Ticket::of(&item), PartStatus::Failed, message.into(), 0.0);
        }
    }

    /// Refuses new dispatches from now on; what is queued is still handed out.
    pub fn drain(&self) {
        {
            let mut state = self.state.lock().unwrap();
            if !state.draining {
                state.draining = true;
                // What routers had sent by now has yet to be read.
                state.streams.last_asked = monotonic();
            }
        }
        self.work.notify_one();
    }

    /// Whether every dispatch is answered (its partial was taken by the transport, or it failed), and none came for so
    /// long, nor since the drain began: routers send until they have read a refusal.
    pub fn is_settled(&self, quiet: Duration) -> bool {
        let state = self.state.lock().unwrap();
        let silence = monotonic() - state.streams.last_asked;
        state.streams.are_settled() && silence >= quiet.as_secs_f64()
    }

    /// Refuses new dispatches, waits until all accepted ones are answered, ends every stream and the server. Another
    /// thread goes on calling `next_batch` meanwhile. False when that took longer than the timeout.
    pub fn drained(&self, timeout: Duration) -> bool {
        self.drain();
        let ending = async {
            let settled = tokio::time::timeout(timeout, self.until_settled()).await;
            self.end_streams();
            turns(MANY).await;
            let ended = match self.server.lock().unwrap().as_ref() {
                Some(server) => {
                    server.stop();
                    Some(server.ended_later())
                }
                None => None,
            };
            if let Some(ended) = ended {
                ended.within(LAST_WRITES).await;
            }
            settled.is_ok()
        };
        self.driver.drive(ending).unwrap_or(true)
    }

    /// Figures of the queue.
    pub fn stats(&self) -> QueueStats {
        let state = self.state.lock().unwrap();
        let counts = state.queue.counts;
        QueueStats {
            queued_rows: state.queue.queued_rows,
            overloaded: counts.overloaded,
            expired: counts.expired,
            invalid: counts.invalid,
            dispatches: counts.dispatches,
            waited_s: counts.waited_s,
            rows_per_s: state.queue.rows_per_s,
        }
    }

    /// What was computed inside `next_batch`.
    pub fn computed(&self) -> Computed {
        self.state.lock().unwrap().computed.clone()
    }

    /// Ends all streams at once; `next_batch` returns None from now on.
    pub fn close(&self) {
        self.drain();
        self.driver.close();
    }

    /// A batch and the kernel that takes it, if one does.
    async fn next(&self, timeout: Duration) -> Option<(Batch, Option<Kernel>)> {
        let until = monotonic() + timeout.as_secs_f64();
        // What was pushed since the last call goes out before the next batch is computed, and input is looked for, however
        // much waits: it joins that batch.
        turns(if timeout.is_zero() { MANY } else { 2 }).await;
        let mut timer = None;
        loop {
            match self.take() {
                Taken::Batch(batch, kernel) => return Some((batch, kernel)),
                Taken::Nothing { draining: true } => return None,
                Taken::Nothing { draining: false } => {}
            }
            let timer = timer.get_or_insert_with(|| {
                Box::pin(tokio::time::sleep_until(crate::driver::instant(until)))
            });
            tokio::select! {
                biased;
                () = self.work.notified() => {}
                () = timer.as_mut() => return None,
            }
        }
    }

    /// What was handed over, or the next batch of the queue.
    fn take(&self) -> Taken {
        let handed_over = self.state.lock().unwrap().handed_over.take();
        match handed_over {
            Some((batch, kernel)) => Taken::Batch(batch, kernel),
            None => self.take_queued(),
        }
    }

    fn take_queued(&self) -> Taken {
        let now = monotonic();
        let (items, expired, kernel, draining) = {
            let mut state = self.state.lock().unwrap();
            let (items, expired) = state.queue.take(now);
            let layer = items.first().map(|item| item.key.layer);
            let kernel = layer.and_then(|layer| state.kernels.get(&layer).copied());
            (items, expired, kernel, state.draining)
        };
        self.answer_expired(expired);
        let Some(first) = items.first() else {
            return Taken::Nothing { draining };
        };
        let batch = Batch {
            layer: first.key.layer,
            items,
            taken_at: now,
        };
        Taken::Batch(batch, kernel)
    }

    /// Inside the runtime: computes a batch of few rows, or hands over what is not for here. Returns whether more waits.
    fn answer_next(&self) -> bool {
        // Whoever computes outside looks at the queue when it is back.
        if !self.driven.load(Ordering::SeqCst) || self.state.lock().unwrap().handed_over.is_some() {
            return false;
        }
        match self.take_queued() {
            Taken::Batch(batch, Some(kernel)) if batch.rows() <= FEW => {
                self.compute(batch, &kernel);
                self.state.lock().unwrap().queue.queued_rows > 0
            }
            Taken::Batch(batch, kernel) => {
                self.state.lock().unwrap().handed_over = Some((batch, kernel));
                self.work.notify_one();
                false
            }
            Taken::Nothing { .. } => false,
        }
    }

    /// Computes a batch and pushes its partials; returns whether the drain has begun.
    fn compute(&self, batch: Batch, kernel: &Kernel) -> bool {
        let begun = monotonic();
        let result = kernel::compute(kernel, &batch.items, self.limits.hidden);
        match result {
            Ok(partials) => {
                self.count(&batch, monotonic() - begun);
                self.measure(&batch);
                self.push(batch.items, partials);
            }
            Err(error) => {
                let message = format!("computing layer {} failed: {error}", batch.layer);
                crate::logs::log(crate::logs::Level::Warning, message.clone());
                self.fail(batch, &message);
            }
        }
        self.state.lock().unwrap().draining
    }

    fn count(&self, batch: &Batch, seconds: f64) {
        let computed = &mut self.state.lock().unwrap().computed;
        computed.batches += 1;
        computed.rows += batch.rows() as u64;
        computed.seconds += seconds;
        for item in &batch.items {
            for expert in accept::numbers(&item.slot_experts) {
                *computed.slots_by_expert.entry(expert).or_default() += 1;
            }
        }
    }

    fn measure(&self, batch: &Batch) {
        let seconds = monotonic() - batch.taken_at;
        self.state
            .lock()
            .unwrap()
            .queue
            .measured(batch.rows(), seconds);
    }

    /// Hands partials to their aggregators' streams; a part is acknowledged when the transport took it.
    fn push(&self, items: Vec<Item>, partials: Vec<Bytes>) {
        for (item, data) in items.into_iter().zip(partials) {
            let ticket = Ticket::of(&item);
            let collector = self.collector(&item.aggregator);
            let Some(outbox) = collector else {
                let message = format!(
                    "aggregator '{}' has no Collect stream open here",
                    item.aggregator
                );
                self.answer(ticket, PartStatus::NoCollector, message, 0.0);
                continue;
            };
            let message = partial_message(&item, data);
            let size = prost::Message::encoded_len(&message);
            let aggregator = item.aggregator;
            if outbox.put(message, size, Some(self.receipt_for(ticket, &aggregator))) {
                continue;
            }
            if outbox.is_over() {
                self.answer_gone(ticket, &aggregator);
            } else {
                let bound = outbox.max_bytes();
                let message =
                    format!("aggregator '{aggregator}' does not read: {bound} bytes wait for it");
                self.answer(ticket, PartStatus::Failed, message, 0.0);
            }
        }
    }

    fn collector(&self, aggregator: &str) -> Option<Outbox<CollectResponse>> {
        self.state.lock().unwrap().streams.collector(aggregator)
    }

    /// What follows when a partial was written to its aggregator's stream, or the stream ended before.
    fn receipt_for(&self, ticket: Ticket, aggregator: &str) -> Done {
        let (myself, aggregator) = (self.myself.clone(), aggregator.to_string());
        Box::new(move |written| {
            let Some(expert) = myself.upgrade() else {
                return;
            };
            if written {
                expert.answer(ticket, PartStatus::Pushed, String::new(), 0.0);
            } else {
                expert.answer_gone(ticket, &aggregator);
            }
        })
    }

    /// A dispatch came.
    fn accept(&self, stream: u64, message: DispatchRequest) {
        let ticket = Ticket::read(stream, &message);
        let draining = {
            let mut state = self.state.lock().unwrap();
            state.streams.asked(stream);
            state.draining
        };
        if draining {
            let message = "this process is shutting down; take another replica".into();
            self.answer(ticket, PartStatus::Draining, message, 0.0);
            return;
        }
        let longest = self.settings.max_message_bytes;
        let item = accept::read_dispatch(message, &self.limits, longest, monotonic(), stream);
        match item {
            Ok(item) => self.offer(ticket, item),
            Err(fault) => {
                self.state.lock().unwrap().queue.counts.invalid += 1;
                self.answer(ticket, PartStatus::Invalid, fault, 0.0);
            }
        }
    }

    fn offer(&self, ticket: Ticket, item: Item) {
        let mut expired = vec![];
        let (retry_after_s, queued_rows) = {
            let queue = &mut self.state.lock().unwrap().queue;
            let now = monotonic();
            if queue.is_full_for(item.rows.len()) {
                expired = queue.drop_expired(now);
            }
            (queue.offer(item, now), queue.queued_rows)
        };
        self.answer_expired(expired);
        match retry_after_s {
            None => self.arrived.notify_one(),
            Some(seconds) => {
                let bound = self.limits.max_queued_rows;
                let message = format!(
                    "{queued_rows} rows wait, the bound is {bound}; try again later or another replica"
                );
                self.answer(ticket, PartStatus::Overloaded, message, seconds);
            }
        }
    }

    fn answer_expired(&self, items: Vec<Item>) {
        for item in items {
            let message = "the deadline passed before the computation began".into();
            self.answer(Ticket::of(&item), PartStatus::Expired, message, 0.0);
        }
    }

    fn answer_gone(&self, ticket: Ticket, aggregator: &str) {
        let message = format!("aggregator '{aggregator}' ended its stream");
        self.answer(ticket, PartStatus::NoCollector, message, 0.0);
    }
}

/// Turns of the runtime: in the first what is queued is written and input is looked for, in the second that is read.
async fn turns(count: usize) {
    for _ in 0..count {
        tokio::task::yield_now().await;
    }
}

/// Ends with its runtime, as the expert's driver does.
async fn answer_few(expert: Weak<Expert>, arrived: Arc<Notify>) {
    loop {
        arrived.notified().await;
        while expert.upgrade().is_some_and(|expert| expert.answer_next()) {
            // What was pushed goes out, and what has come meanwhile joins the next batch.
            tokio::task::yield_now().await;
        }
    }
}

/// One receipt waits; one of them tells of rows that wait.
#[derive(Default)]
struct Gather {
    any: Notify,
    queued: Notify,
}

async fn gather_receipts(expert: Weak<Expert>, gather: Arc<Gather>) {
    loop {
        gather.any.notified().await;
        let _ = tokio::time::timeout(GATHERING, gather.queued.notified()).await;
        tokio::time::sleep(GATHERING_QUEUED).await;
        match expert.upgrade() {
            Some(expert) => expert.flush_receipts(),
            None => return,
        }
    }
}

fn partial_message(item: &Item, data: Bytes) -> CollectResponse {
    let rows = Tensor {
        dtype: item.partial_dtype as i32,
        shape: item.rows.shape.clone(),
        data,
    };
    let partial = Partial {
        call_id: item.key.call_id,
        layer: item.key.layer,
        part: item.part,
        rows: Some(rows),
    };
    CollectResponse {
        kind: Some(collect_response::Kind::Partial(partial)),
    }
}
