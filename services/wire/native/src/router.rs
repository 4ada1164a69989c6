//! A router's streams and its open calls. Every method may be called from any thread; `exchange` drives the runtime.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};

use tokio::sync::Notify;

use crate::api::aggregator::{
    combine_request::Kind as Ask, combine_response::Kind as Answer, Abandon, CombineRequest,
    CombineResponse, GiveUp, Hello, Plan as PlanMessage, PlannedPart as PlannedMessage,
};
use crate::api::expert::{
    dispatch_response::Kind as Word, DispatchRequest, DispatchResponse, PartStatus, Receipt,
};
use crate::api::tensor::Tensor;
use crate::collector::Collector;
use crate::combiner::{Combiner, Event, Key, Limits, Missing, Plan, Tally};
use crate::driver::{instant, monotonic, Driver};
use crate::host::Host;
use crate::ledger::{Failure, Kind, Ledger};
use crate::link::{End, Link, Unsent};
use crate::names::{COMBINE, DISPATCH};
use crate::settings::Settings;
use crate::tensors::{int32_message, Rows};

/// How long after a call's deadline its answer, sent at the deadline, may take to get here.
const GRACE_S: f64 = 0.5;
/// Room for what the sender adds to a message: the aggregator's name.
const ENVELOPE_BYTES: usize = 1024;
const LONGEST_TIMEOUT_US: f64 = 9.2e18;
/// The owner of all calls in the combiner inside this router.
const MYSELF: u64 = 0;

/// A part to be sent; the aggregator's name is filled in when it is known.
pub struct Dispatch {
    pub endpoint: String,
    pub request: DispatchRequest,
}

#[derive(Debug)]
pub enum Outcome {
    Combined { rows: Rows, missing: Vec<Missing> },
    Incomplete(Vec<Failure>),
    AggregatorLost(String),
    CallFailed { message: String, deadline: bool },
}

struct Call {
    plan: Arc<Plan>,
    aggregator: Option<String>,
    ledger: Ledger,
    failures: Vec<Failure>,
    outcome: Option<Outcome>,
}

impl Call {
    fn finish(&mut self, outcome: Outcome) {
        self.outcome.get_or_insert(outcome);
    }
}

/// What waits for an aggregator's stream to open.
enum Waiting {
    Begin(Key, Vec<Dispatch>),
    Send(Key, Vec<Dispatch>),
    GiveUp(Key, u32, String),
}

struct ExpertPeer {
    number: u64,
    link: Arc<Link<DispatchRequest>>,
    instance: Option<String>,
    queued_rows: u32,
    reason: String,
}

struct AggregatorPeer {
    number: u64,
    link: Arc<Link<CombineRequest>>,
    collector: Option<String>,
    waiting: Vec<Waiting>,
}

struct Embedded {
    host: Arc<Host>,
    collector: Collector,
}

#[derive(Default)]
struct State {
    calls: HashMap<Key, Call>,
    experts: HashMap<String, ExpertPeer>,
    aggregators: HashMap<String, AggregatorPeer>,
    numbers: u64,
    closed: bool,
}

pub struct Router {
    name: String,
    settings: Settings,
    driver: Arc<Driver>,
    state: Mutex<State>,
    embedded: Option<Embedded>,
    news: Notify,
    myself: Weak<Router>,
}

impl Router {
    /// name: of the router, new at each start. combiner: bounds of the one inside, for calls without an aggregator.
    pub fn new(
        name: &str,
        combiner: Option<Limits>,
        settings: Settings,
        driver: Arc<Driver>,
    ) -> Arc<Router> {
        Arc::new_cyclic(|myself: &Weak<Router>| {
            let embedded = combiner.map(|limits| {
                let host = Host::new(Combiner::new(limits));
                driver.spawn(host.clone().timer());
                let router = myself.clone();
                host.attach(
                    MYSELF,
                    Arc::new(move |event| {
                        if let Some(router) = router.upgrade() {
                            router.take_event(event);
                        }
                    }),
                );
                let collector = Collector::new(
                    name,
                    host.clone(),
                    settings.clone(),
                    driver.handle().clone(),
                );
                Embedded { host, collector }
            });
            Router {
                name: name.to_string(),
                settings: settings.clone(),
                driver: driver.clone(),
                state: Mutex::default(),
                embedded,
                news: Notify::new(),
                myself: myself.clone(),
            }
        })
    }

    /// See RouterWire.exchange. plan: made at the call's first exchange only.
    pub fn exchange(
        &self,
        key: Key,
        plan: impl FnOnce() -> Plan,
        dispatches: Vec<Dispatch>,
        aggregator: Option<&str>,
        deadline: f64,
        until: f64,
    ) -> Outcome {
        let opened = self.refuse_too_long(key, dispatches, plan, aggregator);
        let (first, dispatches) = match opened {
            Ok(opened) => opened,
            Err(outcome) => return outcome,
        };
        // Inside the runtime: a stream that is woken from outside costs a system call each.
        let exchanging = async {
            if first {
                self.begin(key, dispatches);
            } else {
                self.send(key, dispatches);
            }
            self.fetch(key, deadline, until).await
        };
        self.driver.drive(exchanging).unwrap_or_else(closed)
    }

    /// Whether a call is open.
    pub fn knows(&self, key: Key) -> bool {
        self.state.lock().unwrap().calls.contains_key(&key)
    }

    /// Counters of the combiner inside, and its open calls; None where there is none.
    pub fn combiner_figures(&self) -> Option<(Tally, usize)> {
        self.embedded.as_ref().map(|inside| inside.host.figures())
    }

    /// Opens the call if it is new. Messages that no stream can carry become failures here.
    fn refuse_too_long(
        &self,
        key: Key,
        dispatches: Vec<Dispatch>,
        plan: impl FnOnce() -> Plan,
        aggregator: Option<&str>,
    ) -> Result<(bool, Vec<Dispatch>), Outcome> {
        let mut state = self.state.lock().unwrap();
        if state.closed {
            return Err(closed());
        }
        let first = !state.calls.contains_key(&key);
        if first {
            let call = Call {
                plan: Arc::new(plan()),
                aggregator: aggregator.map(str::to_string),
                ledger: Ledger::default(),
                failures: vec![],
                outcome: None,
            };
            state.calls.insert(key, call);
        }
        let most =
            self.settings.max_message_bytes - ENVELOPE_BYTES.min(self.settings.max_message_bytes);
        let mut fitting = vec![];
        for dispatch in dispatches {
            let size = prost::Message::encoded_len(&dispatch.request);
            if size <= most {
                fitting.push(dispatch);
            } else if let Some(call) = state.calls.get_mut(&key) {
                let message = format!("a dispatch of {size} bytes, the bound is {most}; send fewer rows in a layer call");
                call.failures.push(Failure::new(
                    dispatch.request.part,
                    &dispatch.endpoint,
                    Kind::Invalid,
                    message,
                ));
            }
        }
        Ok((first, fitting))
    }

    fn begin(&self, key: Key, dispatches: Vec<Dispatch>) {
        let plan = {
            let mut state = self.state.lock().unwrap();
            let State {
                calls, aggregators, ..
            } = &mut *state;
            let Some(call) = calls.get_mut(&key) else {
                return;
            };
            match &call.aggregator {
                None if self.embedded.is_none() => {
                    call.finish(Outcome::AggregatorLost(
                        "aggregator embedded: no combiner is inside this router".into(),
                    ));
                    return;
                }
                None => call.plan.clone(),
                Some(at) => {
                    match aggregators.get_mut(at) {
                        None => {
                            let message = format!("aggregator {at}: it is not among the endpoints");
                            call.finish(Outcome::AggregatorLost(message));
                        }
                        Some(peer) if peer.collector.is_none() => {
                            peer.waiting.push(Waiting::Begin(key, dispatches))
                        }
                        Some(_) => self.begin_open(&mut state, key, dispatches),
                    }
                    return;
                }
            }
        };
        if let Some(embedded) = &self.embedded {
            embedded.host.plan(MYSELF, (*plan).clone());
        }
        let mut state = self.state.lock().unwrap();
        self.send_all(&mut state, key, &self.name, dispatches);
    }

    fn send(&self, key: Key, dispatches: Vec<Dispatch>) {
        if dispatches.is_empty() {
            return;
        }
        let mut state = self.state.lock().unwrap();
        let Some(call) = state.calls.get(&key) else {
            return;
        };
        match call.aggregator.clone() {
            None => self.send_all(&mut state, key, &self.name, dispatches),
            Some(at) => {
                let Some(peer) = state.aggregators.get_mut(&at) else {
                    return;
                };
                match peer.collector.clone() {
                    None => peer.waiting.push(Waiting::Send(key, dispatches)),
                    Some(collector) => self.send_all(&mut state, key, &collector, dispatches),
                }
            }
        }
    }

    /// The plan goes out, then all parts.
    fn begin_open(&self, state: &mut State, key: Key, dispatches: Vec<Dispatch>) {
        let State {
            calls, aggregators, ..
        } = state;
        let Some(call) = calls.get_mut(&key) else {
            return;
        };
        let Some(at) = call.aggregator.clone() else {
            return;
        };
        let Some(peer) = aggregators.get(&at) else {
            return;
        };
        let Some(collector) = peer.collector.clone() else {
            return;
        };
        let plan = CombineRequest {
            kind: Some(Ask::Plan(plan_message(&call.plan))),
        };
        match peer.link.send(plan) {
            Ok(()) => self.send_all(state, key, &collector, dispatches),
            Err(Unsent::Full) => self.end_call(
                state,
                key,
                Outcome::AggregatorLost(format!("aggregator {at} does not read")),
            ),
            Err(Unsent::Waiting) => self.end_call(
                state,
                key,
                Outcome::AggregatorLost(format!("aggregator {at}: its stream broke")),
            ),
        }
    }

    fn send_all(&self, state: &mut State, key: Key, collector: &str, dispatches: Vec<Dispatch>) {
        let State { calls, experts, .. } = state;
        let Some(call) = calls.get_mut(&key) else {
            return;
        };
        for mut dispatch in dispatches {
            let part = dispatch.request.part;
            dispatch.request.aggregator = collector.to_string();
            let failed = match experts.get(&dispatch.endpoint) {
                None => Some((
                    Kind::Unreachable,
                    format!(
                        "{} is not among the endpoints that exist",
                        dispatch.endpoint
                    ),
                )),
                Some(peer) => match peer.link.send(dispatch.request) {
                    Ok(()) => {
                        call.ledger
                            .sent(part, &dispatch.endpoint, peer.instance.clone());
                        None
                    }
                    Err(Unsent::Waiting) => Some((
                        Kind::Unreachable,
                        format!("{}: {}", dispatch.endpoint, peer.reason),
                    )),
                    Err(Unsent::Full) => {
                        let bytes = self.settings.max_outbox_bytes;
                        let message = format!(
                            "{}: the expert does not read: {bytes} bytes wait for it",
                            dispatch.endpoint
                        );
                        Some((Kind::Failed, message))
                    }
                },
            };
            if let Some((kind, message)) = failed {
                call.failures
                    .push(Failure::new(part, &dispatch.endpoint, kind, message));
                self.news.notify_one();
            }
        }
    }

    /// Waits for news, until a moment; whoever waits up to the call's deadline waits the grace beyond it.
    async fn fetch(&self, key: Key, deadline: f64, until: f64) -> Outcome {
        let last = deadline + GRACE_S;
        let moment = if until < deadline { until } else { last };
        if until <= monotonic() || self.has_failed(key) {
            // Sends, and looks for what has come by the way: a few turns of the runtime. Who asks again and again and is
            // told of failures at once would else never let a stream be dialled.
            for _ in 0..8 {
                tokio::task::yield_now().await;
            }
        }
        let mut timer = None;
        loop {
            {
                let mut state = self.state.lock().unwrap();
                let Some(call) = state.calls.get_mut(&key) else {
                    return closed();
                };
                if call.outcome.is_some() {
                    let call = state.calls.remove(&key);
                    return call.and_then(|call| call.outcome).unwrap_or_else(closed);
                }
                if !call.failures.is_empty() {
                    return Outcome::Incomplete(std::mem::take(&mut call.failures));
                }
            }
            let timer =
                timer.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(instant(moment))));
            tokio::select! {
                biased;
                () = self.news.notified() => {}
                () = timer.as_mut() => {
                    if monotonic() < last {
                        return Outcome::Incomplete(vec![]);
                    }
                    self.abandon(key);
                    let message = "no answer came before the deadline of the layer call".to_string();
                    return Outcome::CallFailed { message, deadline: true };
                }
            }
        }
    }

    fn has_failed(&self, key: Key) -> bool {
        let state = self.state.lock().unwrap();
        state
            .calls
            .get(&key)
            .is_some_and(|call| !call.failures.is_empty())
    }

    /// Tells the combiner that no replica will deliver this part.
    pub fn give_up(&self, key: Key, part: u32, reason: String) {
        {
            let mut state = self.state.lock().unwrap();
            let State {
                calls, aggregators, ..
            } = &mut *state;
            let Some(call) = calls.get(&key) else { return };
            if let Some(at) = &call.aggregator {
                let Some(peer) = aggregators.get_mut(at) else {
                    return;
                };
                if peer.collector.is_none() {
                    peer.waiting.push(Waiting::GiveUp(key, part, reason));
                } else {
                    let _ = peer.link.send(give_up_message(key, part, reason));
                }
                return;
            }
        }
        if let Some(embedded) = &self.embedded {
            embedded.host.give_up(key, part, reason);
        }
    }

    /// Forgets a call that nobody waits for.
    pub fn abandon(&self, key: Key) {
        let aggregator = {
            let mut state = self.state.lock().unwrap();
            let Some(call) = state.calls.remove(&key) else {
                return;
            };
            if let Some(peer) = call
                .aggregator
                .as_ref()
                .and_then(|at| state.aggregators.get(at))
            {
                if peer.collector.is_some() {
                    let ask = Ask::Abandon(Abandon {
                        call_id: key.call_id,
                        layer: key.layer,
                    });
                    let _ = peer.link.send(CombineRequest { kind: Some(ask) });
                }
            }
            call.aggregator
        };
        if let (None, Some(embedded)) = (aggregator, &self.embedded) {
            embedded.host.abandon(key);
        }
    }

    /// Rows waiting at an expert as of its last receipt.
    pub fn queued_rows(&self, endpoint: &str) -> u32 {
        self.state
            .lock()
            .unwrap()
            .experts
            .get(endpoint)
            .map_or(0, |peer| peer.queued_rows)
    }

    /// The endpoints that exist now: dials new ones, closes streams to others, cuts waits short.
    pub fn set_endpoints(&self, experts: &[String], aggregators: &[String]) {
        {
            let mut state = self.state.lock().unwrap();
            let gone: Vec<String> = state
                .experts
                .keys()
                .filter(|at| !experts.contains(at))
                .cloned()
                .collect();
            for endpoint in gone {
                if let Some(peer) = state.experts.remove(&endpoint) {
                    peer.link.close();
                    let kind = if peer.instance.is_some() {
                        Kind::StreamLost
                    } else {
                        Kind::Unreachable
                    };
                    self.expert_lost(&mut state, &endpoint, kind, "the endpoint was removed");
                }
            }
            let gone: Vec<String> = state
                .aggregators
                .keys()
                .filter(|at| !aggregators.contains(at))
                .cloned()
                .collect();
            for endpoint in gone {
                if let Some(peer) = state.aggregators.remove(&endpoint) {
                    peer.link.close();
                    self.aggregator_lost(&mut state, &endpoint, "the endpoint was removed");
                }
            }
            for endpoint in experts {
                match state.experts.get(endpoint) {
                    Some(peer) => peer.link.redial(),
                    None => self.dial_expert(&mut state, endpoint),
                }
            }
            for endpoint in aggregators {
                match state.aggregators.get(endpoint) {
                    Some(peer) => peer.link.redial(),
                    None => self.dial_aggregator(&mut state, endpoint),
                }
            }
        }
        if let Some(embedded) = &self.embedded {
            embedded.collector.set_endpoints(experts);
        }
        self.driver.nudge();
    }

    /// Ends all streams; calls that are open are lost.
    pub fn close(&self) {
        self.set_endpoints(&[], &[]);
        {
            let mut state = self.state.lock().unwrap();
            state.closed = true;
            for call in state.calls.values_mut() {
                call.finish(closed());
            }
            self.news.notify_one();
        }
        // What was queued before, such as the end of streams, is let out.
        self.driver.drive(async {
            for _ in 0..8 {
                tokio::task::yield_now().await;
            }
        });
        self.driver.close();
    }

    fn dial_expert(&self, state: &mut State, endpoint: &str) {
        state.numbers += 1;
        let number = state.numbers;
        let end = Arc::new(ExpertEnd {
            router: self.myself.clone(),
            endpoint: endpoint.to_string(),
            number,
        });
        let link = Link::dial(
            endpoint,
            DISPATCH,
            None,
            end,
            self.settings.clone(),
            self.driver.handle(),
        );
        let peer = ExpertPeer {
            number,
            link,
            instance: None,
            queued_rows: 0,
            reason: String::new(),
        };
        state.experts.insert(endpoint.to_string(), peer);
    }

    fn dial_aggregator(&self, state: &mut State, endpoint: &str) {
        state.numbers += 1;
        let number = state.numbers;
        let end = Arc::new(AggregatorEnd {
            router: self.myself.clone(),
            endpoint: endpoint.to_string(),
            number,
        });
        let hello = CombineRequest {
            kind: Some(Ask::Hello(Hello {
                router: self.name.clone(),
            })),
        };
        let link = Link::dial(
            endpoint,
            COMBINE,
            Some(hello),
            end,
            self.settings.clone(),
            self.driver.handle(),
        );
        let peer = AggregatorPeer {
            number,
            link,
            collector: None,
            waiting: vec![],
        };
        state.aggregators.insert(endpoint.to_string(), peer);
    }

    /// A call has its outcome; an answer of another shape or type than was asked for is none.
    fn end_call(&self, state: &mut State, key: Key, outcome: Outcome) {
        let Some(call) = state.calls.get_mut(&key) else {
            return;
        };
        let outcome = match outcome {
            Outcome::Combined { rows, .. }
                if rows.dtype != call.plan.dtype
                    || rows.shape != [call.plan.tokens as u32, call.plan.hidden as u32] =>
            {
                let message = format!(
                    "the aggregator answered {} {:?}, want {} [{}, {}]",
                    crate::tensors::name(rows.dtype),
                    rows.shape,
                    crate::tensors::name(call.plan.dtype),
                    call.plan.tokens,
                    call.plan.hidden
                );
                Outcome::CallFailed {
                    message,
                    deadline: false,
                }
            }
            outcome => outcome,
        };
        call.finish(outcome);
        self.news.notify_one();
    }

    fn fail(&self, call: &mut Call, failures: Vec<Failure>) {
        if !failures.is_empty() {
            call.failures.extend(failures);
            self.news.notify_one();
        }
    }

    fn expert_lost(&self, state: &mut State, endpoint: &str, kind: Kind, message: &str) {
        for call in state.calls.values_mut() {
            let failures =
                call.ledger
                    .stream_lost(endpoint, kind, &format!("{endpoint}: {message}"));
            self.fail(call, failures);
        }
    }

    fn aggregator_lost(&self, state: &mut State, endpoint: &str, message: &str) {
        let lost = |call: &Call| call.aggregator.as_deref() == Some(endpoint);
        let keys: Vec<Key> = state
            .calls
            .iter()
            .filter(|(_, call)| lost(call))
            .map(|(key, _)| *key)
            .collect();
        for key in keys {
            self.end_call(
                state,
                key,
                Outcome::AggregatorLost(format!("aggregator {endpoint}: {message}")),
            );
        }
    }

    fn part_refused(&self, state: &mut State, key: Key, part: u32, reason: &str) {
        if let Some(call) = state.calls.get_mut(&key) {
            let failures = call.ledger.refused(part, reason);
            self.fail(call, failures);
        }
    }

    fn source_lost(&self, state: &mut State, place: Option<&str>, instance: &str) {
        for call in state
            .calls
            .values_mut()
            .filter(|call| call.aggregator.as_deref() == place)
        {
            let failures = call
                .ledger
                .source_lost(instance, "the aggregator's stream from it broke");
            self.fail(call, failures);
        }
    }

    /// From the combiner inside.
    fn take_event(&self, event: Event) {
        let mut state = self.state.lock().unwrap();
        match event {
            Event::Answered {
                key, rows, missing, ..
            } => self.end_call(&mut state, key, Outcome::Combined { rows, missing }),
            Event::PartRefused {
                key, part, reason, ..
            } => self.part_refused(&mut state, key, part, &reason),
            Event::SourceLost { instance, .. } => self.source_lost(&mut state, None, &instance),
            Event::Rejected {
                key,
                message,
                deadline,
                ..
            } => {
                self.end_call(&mut state, key, Outcome::CallFailed { message, deadline });
            }
        }
    }
}

fn closed() -> Outcome {
    Outcome::AggregatorLost("this router's wire is closed".to_string())
}

struct ExpertEnd {
    router: Weak<Router>,
    endpoint: String,
    number: u64,
}

impl ExpertEnd {
    /// Does something with the peer, unless it was removed since.
    fn with(&self, act: impl FnOnce(&Router, &mut State)) {
        let Some(router) = self.router.upgrade() else {
            return;
        };
        let mut state = router.state.lock().unwrap();
        if state
            .experts
            .get(&self.endpoint)
            .is_some_and(|peer| peer.number == self.number)
        {
            act(&router, &mut state);
        }
    }
}

impl End<DispatchResponse> for ExpertEnd {
    fn opened(&self, first: DispatchResponse) {
        let Some(Word::Opened(opened)) = first.kind else {
            return;
        };
        self.with(|_, state| {
            for call in state.calls.values_mut() {
                call.ledger.opened(&self.endpoint, &opened.instance);
            }
            if let Some(peer) = state.experts.get_mut(&self.endpoint) {
                peer.instance = Some(opened.instance);
            }
        });
    }

    fn received(&self, message: DispatchResponse) {
        let Some(Word::Receipt(receipt)) = message.kind else {
            return;
        };
        self.with(|router, state| {
            if let Some(peer) = state.experts.get_mut(&self.endpoint) {
                peer.queued_rows = receipt.queued_rows;
            }
            let key = Key {
                call_id: receipt.call_id,
                layer: receipt.layer,
            };
            let part = receipt.part;
            if let Some(call) = state.calls.get_mut(&key) {
                let failure = failure_of(receipt, &self.endpoint);
                let failures = call
                    .ledger
                    .receipt(&self.endpoint, part, failure)
                    .into_iter()
                    .collect();
                router.fail(call, failures);
            }
        });
    }

    fn lost(&self, message: &str) {
        self.with(|router, state| {
            let Some(peer) = state.experts.get_mut(&self.endpoint) else {
                return;
            };
            let kind = if peer.instance.is_some() {
                Kind::StreamLost
            } else {
                Kind::Unreachable
            };
            (peer.instance, peer.queued_rows, peer.reason) = (None, 0, message.to_string());
            router.expert_lost(state, &self.endpoint, kind, message);
        });
    }
}

struct AggregatorEnd {
    router: Weak<Router>,
    endpoint: String,
    number: u64,
}

impl AggregatorEnd {
    fn with(&self, act: impl FnOnce(&Router, &mut State)) {
        let Some(router) = self.router.upgrade() else {
            return;
        };
        let mut state = router.state.lock().unwrap();
        if state
            .aggregators
            .get(&self.endpoint)
            .is_some_and(|peer| peer.number == self.number)
        {
            act(&router, &mut state);
        }
    }
}

impl End<CombineResponse> for AggregatorEnd {
    fn opened(&self, first: CombineResponse) {
        let Some(Answer::Ready(ready)) = first.kind else {
            return;
        };
        self.with(|router, state| {
            let Some(peer) = state.aggregators.get_mut(&self.endpoint) else {
                return;
            };
            peer.collector = Some(ready.instance.clone());
            for waiting in std::mem::take(&mut peer.waiting) {
                match waiting {
                    Waiting::Begin(key, dispatches) => router.begin_open(state, key, dispatches),
                    Waiting::Send(key, dispatches) => {
                        router.send_all(state, key, &ready.instance, dispatches)
                    }
                    Waiting::GiveUp(key, part, reason) => {
                        if let Some(peer) = state.aggregators.get(&self.endpoint) {
                            let _ = peer.link.send(give_up_message(key, part, reason));
                        }
                    }
                }
            }
        });
    }

    fn received(&self, message: CombineResponse) {
        self.with(|router, state| match message.kind {
            Some(Answer::Combined(combined)) => {
                let key = Key {
                    call_id: combined.call_id,
                    layer: combined.layer,
                };
                let missing = combined.missing.into_iter();
                let missing = missing
                    .map(|m| Missing {
                        part: m.part,
                        reason: m.reason,
                        rows: m.rows as usize,
                    })
                    .collect();
                let outcome = match Rows::read(combined.rows, "combined.rows") {
                    Ok(rows) => Outcome::Combined { rows, missing },
                    Err(error) => Outcome::CallFailed {
                        message: format!("{}: {error}", self.endpoint),
                        deadline: false,
                    },
                };
                router.end_call(state, key, outcome);
            }
            Some(Answer::PartRefused(refused)) => {
                let key = Key {
                    call_id: refused.call_id,
                    layer: refused.layer,
                };
                router.part_refused(state, key, refused.part, &refused.reason);
            }
            Some(Answer::SourceLost(lost)) => {
                router.source_lost(state, Some(&self.endpoint), &lost.instance)
            }
            Some(Answer::Failed(failed)) => {
                let key = Key {
                    call_id: failed.call_id,
                    layer: failed.layer,
                };
                let outcome = Outcome::CallFailed {
                    message: failed.message,
                    deadline: failed.deadline,
                };
                router.end_call(state, key, outcome);
            }
            Some(Answer::Ready(_)) | None => {}
        });
    }

    fn lost(&self, message: &str) {
        self.with(|router, state| {
            if let Some(peer) = state.aggregators.get_mut(&self.endpoint) {
                peer.collector = None;
                peer.waiting.clear();
            }
            router.aggregator_lost(state, &self.endpoint, message);
        });
    }
}

/// The failure that a receipt reports; None when the part was pushed. An unknown status is a failure.
pub fn failure_of(receipt: Receipt, endpoint: &str) -> Option<Failure> {
    let kind = match PartStatus::try_from(receipt.status) {
        Ok(PartStatus::Pushed) => return None,
        Ok(PartStatus::Overloaded) => Kind::Overloaded,
        Ok(PartStatus::Expired) => Kind::Expired,
        Ok(PartStatus::NoCollector) => Kind::NoCollector,
        Ok(PartStatus::Invalid) => Kind::Invalid,
        Ok(PartStatus::Draining) => Kind::Draining,
        _ => Kind::Failed,
    };
    let message = if receipt.message.is_empty() {
        format!("status {}", receipt.status)
    } else {
        receipt.message
    };
    let retry_after_s = receipt.retry_after_us as f64 / 1e6;
    Some(Failure {
        part: receipt.part,
        endpoint: endpoint.to_string(),
        kind,
        message,
        retry_after_s,
    })
}

fn give_up_message(key: Key, part: u32, reason: String) -> CombineRequest {
    CombineRequest {
        kind: Some(Ask::GiveUp(GiveUp {
            call_id: key.call_id,
            layer: key.layer,
            part,
            reason,
        })),
    }
}

/// The time left, at least 1 µs as 0 means none; 0 for no deadline.
pub fn timeout_us(deadline: Option<f64>) -> u64 {
    match deadline {
        Some(deadline) if deadline.is_finite() => ((deadline - monotonic()) * 1e6)
            .round()
            .clamp(1.0, LONGEST_TIMEOUT_US)
            as u64,
        _ => 0,
    }
}

fn plan_message(plan: &Plan) -> PlanMessage {
    let parts = plan.parts.iter().map(|part| PlannedMessage {
        part: part.part,
        token_index: Some(int32_message(&part.token_index)),
        row_weights: part.row_weights.as_ref().map(|weights| Tensor {
            dtype: crate::api::tensor::Dtype::Float32 as i32,
            shape: vec![weights.len() as u32],
            data: weights
                .iter()
                .flat_map(|weight| weight.to_le_bytes())
                .collect::<Vec<u8>>()
                .into(),
        }),
    });
    PlanMessage {
        call_id: plan.key.call_id,
        layer: plan.key.layer,
        tokens: plan.tokens as u32,
        hidden: plan.hidden as u32,
        dtype: plan.dtype as i32,
        timeout_us: timeout_us(plan.deadline),
        policy: plan.policy as i32,
        parts: parts.collect(),
    }
}
