//! Streams that an expert has accepted: routers', each of which gets one receipt a dispatch, and aggregators', one by
//! name, the newest wins. As moe.wire.grpcio.dispatch_stream and subscriptions.

use std::collections::HashMap;
use std::sync::Arc;

use tonic::{Status, Streaming};

use super::Expert;
use crate::api::expert::{
    collect_response, dispatch_response, CollectRequest, CollectResponse, DispatchOpened,
    DispatchRequest, DispatchResponse, PartStatus, Receipt, Subscribed,
};
use crate::combiner::Key;
use crate::driver::monotonic;
use crate::logs::{log, Level};
use crate::names::{COLLECT, DISPATCH, LONGEST_AGGREGATOR_NAME};
use crate::outbox::Outbox;
use crate::queue::Item;
use crate::serve::converse::{converse, first_message, route};
use crate::serve::Route;
use crate::settings::Settings;

/// A dispatch that waits for its receipt, and where that goes.
#[derive(Clone, Copy)]
pub(super) struct Ticket {
    stream: u64,
    key: Key,
    part: u32,
}

impl Ticket {
    pub fn of(item: &Item) -> Ticket {
        Ticket {
            stream: item.stream,
            key: item.key,
            part: item.part,
        }
    }

    pub fn read(stream: u64, message: &DispatchRequest) -> Ticket {
        let key = Key {
            call_id: message.call_id,
            layer: message.layer,
        };
        Ticket {
            stream,
            key,
            part: message.part,
        }
    }
}

struct Router {
    outbox: Outbox<DispatchResponse>,
    unanswered: usize,
}

#[derive(Default)]
pub(super) struct Streams {
    numbers: u64,
    /// When the last dispatch came, or the drain began if that was later.
    pub last_asked: f64,
    routers: HashMap<u64, Router>,
    collectors: HashMap<String, (u64, Outbox<CollectResponse>)>,
}

impl Streams {
    pub fn collector(&self, aggregator: &str) -> Option<Outbox<CollectResponse>> {
        self.collectors
            .get(aggregator)
            .map(|(_, outbox)| outbox.clone())
    }

    /// A dispatch came that will be answered.
    pub fn asked(&mut self, stream: u64) {
        self.last_asked = monotonic();
        if let Some(router) = self.routers.get_mut(&stream) {
            router.unanswered += 1;
        }
    }

    pub fn are_settled(&self) -> bool {
        self.routers.values().all(|router| router.unanswered == 0)
    }

    fn is_settled(&self, stream: u64) -> bool {
        self.routers
            .get(&stream)
            .is_none_or(|router| router.unanswered == 0)
    }

    fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }
}

/// The expert's own paths.
pub(super) fn routes(expert: &Arc<Expert>, settings: &Settings) -> Vec<(&'static str, Route)> {
    let (dispatching, collecting) = (expert.clone(), expert.clone());
    let dispatch = route(settings, move |requests, outbox| {
        dispatching.clone().dispatch(requests, outbox)
    });
    let collect = route(settings, move |requests, outbox| {
        collecting.clone().collect(requests, outbox)
    });
    vec![(DISPATCH, dispatch), (COLLECT, collect)]
}

impl Expert {
    /// A router's stream; what it has queued is dropped with it.
    async fn dispatch(
        self: Arc<Self>,
        requests: Streaming<DispatchRequest>,
        outbox: Outbox<DispatchResponse>,
    ) {
        let number = {
            let mut state = self.state.lock().unwrap();
            if state.draining {
                outbox.end(Some(draining()));
                return;
            }
            let number = state.streams.number();
            let router = Router {
                outbox: outbox.clone(),
                unanswered: 0,
            };
            state.streams.routers.insert(number, router);
            number
        };
        let opened = DispatchOpened {
            instance: self.instance.clone(),
        };
        let message = DispatchResponse {
            kind: Some(dispatch_response::Kind::Opened(opened)),
        };
        outbox.put(message, self.instance.len(), None);
        let handle = |message| {
            self.accept(number, message);
            Ok(())
        };
        converse(requests, &outbox, handle, self.until_stream_settled(number)).await;
        let dropped = {
            let mut state = self.state.lock().unwrap();
            state.streams.routers.remove(&number);
            state.queue.remove(|item| item.stream == number)
        };
        drop(dropped);
        self.settled.notify_waiters();
    }

    /// An aggregator's stream.
    async fn collect(
        self: Arc<Self>,
        mut requests: Streaming<CollectRequest>,
        outbox: Outbox<CollectResponse>,
    ) {
        let name = match first_message(&mut requests).await {
            Ok(hello) => hello.unwrap_or_default().aggregator,
            Err(status) => return outbox.end(Some(status)),
        };
        let length = name.chars().count();
        if !(1..=LONGEST_AGGREGATOR_NAME).contains(&length) {
            return outbox.end(Some(Status::invalid_argument(format!(
                "aggregator: got {length} characters, want a name of 1 to {LONGEST_AGGREGATOR_NAME}"
            ))));
        }
        let Some(number) = self.subscribe(&name, &outbox) else {
            return outbox.end(Some(draining()));
        };
        let handle = |_| {
            Err(Status::invalid_argument(
                "a Collect stream takes one message, this is another; open a second stream for another name",
            ))
        };
        // An aggregator's last word ends nothing.
        converse(requests, &outbox, handle, std::future::pending()).await;
        let mut state = self.state.lock().unwrap();
        let collectors = &mut state.streams.collectors;
        if collectors.get(&name).is_some_and(|(at, _)| *at == number) {
            collectors.remove(&name);
        }
    }

    /// Registers a Collect stream in place of an older one; None when this process is draining.
    fn subscribe(&self, name: &str, outbox: &Outbox<CollectResponse>) -> Option<u64> {
        let (number, old) = {
            let mut state = self.state.lock().unwrap();
            if state.draining {
                return None;
            }
            let number = state.streams.number();
            // Before any partial: nobody else knows the outbox yet.
            let subscribed = Subscribed {
                instance: self.instance.clone(),
            };
            let message = CollectResponse {
                kind: Some(collect_response::Kind::Subscribed(subscribed)),
            };
            outbox.put(message, self.instance.len(), None);
            let entry = (number, outbox.clone());
            (number, state.streams.collectors.insert(name.into(), entry))
        };
        if let Some((_, old)) = old {
            log(
                Level::Info,
                format!("aggregator {name} opened a new Collect stream; its old one ends"),
            );
            old.end(Some(Status::failed_precondition(format!(
                "another Collect stream named '{name}' was opened; names must be unique"
            ))));
        }
        Some(number)
    }

    /// Sends the receipt of a dispatch, if its stream is still there.
    pub(super) fn answer(
        &self,
        ticket: Ticket,
        status: PartStatus,
        message: String,
        retry_after_s: f64,
    ) {
        let (outbox, queued_rows) = {
            let state = self.state.lock().unwrap();
            let Some(router) = state.streams.routers.get(&ticket.stream) else {
                return;
            };
            (router.outbox.clone(), state.queue.queued_rows)
        };
        let receipt = Receipt {
            call_id: ticket.key.call_id,
            layer: ticket.key.layer,
            part: ticket.part,
            status: status as i32,
            retry_after_us: (retry_after_s * 1e6).round() as u64,
            message,
            queued_rows: queued_rows as u32,
        };
        let message = DispatchResponse {
            kind: Some(dispatch_response::Kind::Receipt(receipt)),
        };
        let size = prost::Message::encoded_len(&message);
        let queued = if status == PartStatus::Pushed {
            // Nobody waits for it: it goes out with others.
            self.gather.any.notify_one();
            if queued_rows > 0 {
                self.gather.queued.notify_one();
            }
            outbox.put_later(message, size, None)
        } else {
            outbox.put(message, size, None)
        };
        if !queued {
            let bound = outbox.max_bytes();
            outbox.end(Some(Status::resource_exhausted(format!(
                "the router does not read its stream: {bound} bytes wait; dial again and read"
            ))));
        }
        let settled = {
            let mut state = self.state.lock().unwrap();
            match state.streams.routers.get_mut(&ticket.stream) {
                Some(router) => {
                    router.unanswered = router.unanswered.saturating_sub(1);
                    router.unanswered == 0
                }
                None => false,
            }
        };
        if settled {
            self.settled.notify_waiters();
        }
    }

    /// Sends the receipts that wait for others.
    pub(super) fn flush_receipts(&self) {
        let outboxes: Vec<Outbox<DispatchResponse>> = {
            let state = self.state.lock().unwrap();
            let routers = state.streams.routers.values();
            routers.map(|router| router.outbox.clone()).collect()
        };
        outboxes.iter().for_each(Outbox::flush);
    }

    async fn until_stream_settled(&self, stream: u64) {
        self.until(|streams| streams.is_settled(stream)).await;
    }

    pub(super) async fn until_settled(&self) {
        self.until(Streams::are_settled).await;
    }

    async fn until(&self, holds: impl Fn(&Streams) -> bool) {
        loop {
            let changed = self.settled.notified();
            if holds(&self.state.lock().unwrap().streams) {
                return;
            }
            changed.await;
        }
    }

    /// Ends every stream once what is queued is written.
    pub(super) fn end_streams(&self) {
        let (routers, collectors) = {
            let state = self.state.lock().unwrap();
            let routers = state.streams.routers.values();
            let collectors = state.streams.collectors.values();
            (
                routers.map(|r| r.outbox.clone()).collect::<Vec<_>>(),
                collectors.map(|(_, o)| o.clone()).collect::<Vec<_>>(),
            )
        };
        routers.iter().for_each(|outbox| outbox.end(None));
        collectors.iter().for_each(|outbox| outbox.end(None));
    }
}

fn draining() -> Status {
    Status::unavailable("this process is draining and takes no new calls")
}
