//! One router's Combine stream, the owner of its calls in the combiner. As in moe.wire.grpcio.aggregator_server.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};

use tonic::{Status, Streaming};

use super::plans::read_plan;
use super::Core;
use crate::api::aggregator::{
    combine_request::Kind as Ask, combine_response::Kind as Answer, CombineFailed, CombineRequest,
    CombineResponse, Combined, MissingPart, PartRefused, Plan as PlanMessage, Ready, SourceLost,
};
use crate::combiner::{Event, Key};
use crate::driver::monotonic;
use crate::names::COMBINE;
use crate::outbox::Outbox;
use crate::serve::converse::{converse, first_message};
use crate::serve::Route;
use crate::settings::Settings;

struct Calls {
    open: HashSet<Key>,
    draining: bool,
}

pub(super) struct Combine {
    owner: u64,
    core: Arc<Core>,
    outbox: Outbox<CombineResponse>,
    calls: Mutex<Calls>,
}

/// The aggregator's own path.
pub(super) fn route(core: &Arc<Core>, settings: &Settings) -> (&'static str, Route) {
    let core = core.clone();
    let talk = move |requests, outbox| serve(core.clone(), requests, outbox);
    (COMBINE, crate::serve::converse::route(settings, talk))
}

/// A router's stream; its open calls are abandoned with it.
async fn serve(
    core: Arc<Core>,
    mut requests: Streaming<CombineRequest>,
    outbox: Outbox<CombineResponse>,
) {
    match first_message(&mut requests).await {
        Ok(hello) => {
            if !matches!(hello.and_then(|hello| hello.kind), Some(Ask::Hello(_))) {
                let message = "kind: the first message of a Combine stream has to be hello";
                return outbox.end(Some(Status::invalid_argument(message)));
            }
        }
        Err(status) => return outbox.end(Some(status)),
    }
    let Some(stream) = open(&core, &outbox) else {
        let message = "this process is draining and takes no new calls";
        return outbox.end(Some(Status::unavailable(message)));
    };
    converse(
        requests,
        &outbox,
        |message| stream.handle(message),
        stream.until_settled(),
    )
    .await;
    core.streams.lock().unwrap().open.remove(&stream.owner);
    core.host.detach(stream.owner);
    core.settled.notify_waiters();
}

/// Registers a stream and answers `ready`; None when this process is draining.
fn open(core: &Arc<Core>, outbox: &Outbox<CombineResponse>) -> Option<Arc<Combine>> {
    let stream = {
        let mut streams = core.streams.lock().unwrap();
        if streams.draining {
            return None;
        }
        streams.numbers += 1;
        let stream = Arc::new(Combine {
            owner: streams.numbers,
            core: core.clone(),
            outbox: outbox.clone(),
            calls: Mutex::new(Calls {
                open: HashSet::new(),
                draining: false,
            }),
        });
        streams.open.insert(stream.owner, stream.clone());
        stream
    };
    stream.send(Answer::Ready(Ready {
        instance: core.collect_name.clone(),
    }));
    let sink = Arc::downgrade(&stream);
    core.host.attach(
        stream.owner,
        Arc::new(move |event| {
            if let Some(stream) = sink.upgrade() {
                stream.carry(event);
            }
        }),
    );
    Some(stream)
}

impl Combine {
    pub fn is_settled(&self) -> bool {
        self.calls.lock().unwrap().open.is_empty()
    }

    /// Takes no new plans; ends as soon as no call is open.
    pub fn drain(&self) {
        let settled = {
            let mut calls = self.calls.lock().unwrap();
            calls.draining = true;
            calls.open.is_empty()
        };
        if settled {
            self.end();
        }
    }

    /// Ends the stream once what is queued is written.
    pub fn end(&self) {
        self.outbox.end(None);
    }

    async fn until_settled(&self) {
        loop {
            let changed = self.core.settled.notified();
            if self.is_settled() {
                return;
            }
            changed.await;
        }
    }

    fn handle(&self, message: CombineRequest) -> Result<(), Status> {
        let host = &self.core.host;
        match message.kind {
            Some(Ask::Plan(plan)) => self.plan(plan),
            Some(Ask::GiveUp(given)) => {
                let key = Key {
                    call_id: given.call_id,
                    layer: given.layer,
                };
                host.give_up(key, given.part, given.reason);
            }
            Some(Ask::Abandon(abandoned)) => {
                let key = Key {
                    call_id: abandoned.call_id,
                    layer: abandoned.layer,
                };
                host.abandon(key);
                self.close(key);
            }
            other => {
                let got = other.map_or("nothing", |_| "hello");
                return Err(Status::invalid_argument(format!(
                    "kind: got {got}, want plan, give_up or abandon"
                )));
            }
        }
        Ok(())
    }

    fn plan(&self, message: PlanMessage) {
        let key = Key {
            call_id: message.call_id,
            layer: message.layer,
        };
        {
            let mut calls = self.calls.lock().unwrap();
            if calls.draining {
                // Lost with the stream, which ends soon: the router redoes it elsewhere.
                return;
            }
            calls.open.insert(key);
        }
        match read_plan(message, monotonic()) {
            Ok(plan) => self.core.host.plan(self.owner, plan),
            Err(message) => self.carry(Event::Rejected {
                owner: self.owner,
                key,
                message,
                deadline: false,
            }),
        }
    }

    fn carry(&self, event: Event) {
        let closed = match &event {
            Event::Answered { key, .. } | Event::Rejected { key, .. } => Some(*key),
            Event::PartRefused { .. } | Event::SourceLost { .. } => None,
        };
        self.send(answer(event));
        if let Some(key) = closed {
            self.close(key);
        }
    }

    fn send(&self, kind: Answer) {
        let message = CombineResponse { kind: Some(kind) };
        let size = prost::Message::encoded_len(&message);
        if !self.outbox.put(message, size, None) {
            let bound = self.outbox.max_bytes();
            self.outbox.end(Some(Status::resource_exhausted(format!(
                "the router does not read its stream: {bound} bytes wait; dial again and read"
            ))));
        }
    }

    /// A call has its answer, or nobody waits for it.
    fn close(&self, key: Key) {
        let (settled, draining) = {
            let mut calls = self.calls.lock().unwrap();
            calls.open.remove(&key);
            (calls.open.is_empty(), calls.draining)
        };
        if settled {
            if draining {
                self.end();
            }
            self.core.settled.notify_waiters();
        }
    }
}

fn answer(event: Event) -> Answer {
    match event {
        Event::Answered {
            key, rows, missing, ..
        } => Answer::Combined(Combined {
            call_id: key.call_id,
            layer: key.layer,
            rows: Some(rows.into_message()),
            missing: missing
                .into_iter()
                .map(|missing| MissingPart {
                    part: missing.part,
                    reason: missing.reason,
                    rows: missing.rows as u32,
                })
                .collect(),
        }),
        Event::PartRefused {
            key, part, reason, ..
        } => Answer::PartRefused(PartRefused {
            call_id: key.call_id,
            layer: key.layer,
            part,
            reason,
        }),
        Event::SourceLost { instance, .. } => Answer::SourceLost(SourceLost { instance }),
        Event::Rejected {
            key,
            message,
            deadline,
            ..
        } => Answer::Failed(CombineFailed {
            call_id: key.call_id,
            layer: key.layer,
            deadline,
            message,
        }),
    }
}
