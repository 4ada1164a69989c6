//! Runs a combiner: passes the time in, wakes it when something is due, carries its events to their owners.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use tokio::sync::Notify;

use crate::combiner::{Combiner, Event, Key, Plan, Tally};
use crate::driver::{instant, monotonic};
use crate::tensors::Rows;

/// Who gets an owner's events. Called with no lock held.
pub type Sink = Arc<dyn Fn(Event) + Send + Sync>;

struct Inner {
    combiner: Combiner,
    /// When the timer looks next; infinite when it sleeps.
    armed: f64,
}

/// Shared by the server's streams, or by a router and its collect streams.
pub struct Host {
    inner: Mutex<Inner>,
    sinks: Mutex<HashMap<u64, Sink>>,
    sooner: Notify,
}

impl Host {
    /// The host; its `timer` has to run as a task.
    pub fn new(combiner: Combiner) -> Arc<Host> {
        let inner = Mutex::new(Inner {
            combiner,
            armed: f64::INFINITY,
        });
        Arc::new(Host {
            inner,
            sinks: Mutex::default(),
            sooner: Notify::new(),
        })
    }

    /// From now on `sink` gets the owner's events.
    pub fn attach(&self, owner: u64, sink: Sink) {
        self.sinks.lock().unwrap().insert(owner, sink);
    }

    /// The owner is gone; its calls are abandoned.
    pub fn detach(&self, owner: u64) {
        self.sinks.lock().unwrap().remove(&owner);
        self.inner.lock().unwrap().combiner.forget_owner(owner);
    }

    pub fn plan(&self, owner: u64, plan: Plan) {
        self.run(|combiner| combiner.plan(owner, plan));
    }

    pub fn part(&self, key: Key, part: u32, rows: Result<Rows, String>) {
        self.run(|combiner| match rows {
            Ok(rows) => combiner.part(key, part, rows, monotonic()),
            Err(reason) => combiner.broken_part(key, part, reason),
        });
    }

    pub fn give_up(&self, key: Key, part: u32, reason: String) {
        self.run(|combiner| combiner.give_up(key, part, reason));
    }

    pub fn abandon(&self, key: Key) {
        self.inner.lock().unwrap().combiner.abandon(key);
    }

    pub fn source_lost(&self, instance: &str) {
        self.run(|combiner| combiner.source_lost(instance));
    }

    /// Counters, and calls that are open.
    pub fn figures(&self) -> (Tally, usize) {
        let inner = self.inner.lock().unwrap();
        (inner.combiner.tally(), inner.combiner.open_calls())
    }

    /// Wakes the combiner when something is due, for ever.
    pub async fn timer(self: Arc<Host>) {
        loop {
            let armed = {
                let mut inner = self.inner.lock().unwrap();
                inner.armed = inner.combiner.next_deadline().unwrap_or(f64::INFINITY);
                inner.armed
            };
            if armed.is_finite() {
                tokio::select! {
                    () = tokio::time::sleep_until(instant(armed)) => self.run(|combiner| combiner.expire(monotonic())),
                    () = self.sooner.notified() => {}
                }
            } else {
                self.sooner.notified().await;
            }
        }
    }

    fn run(&self, act: impl FnOnce(&mut Combiner) -> Vec<Event>) {
        let events = {
            let mut inner = self.inner.lock().unwrap();
            let events = act(&mut inner.combiner);
            if inner
                .combiner
                .next_deadline()
                .is_some_and(|next| next < inner.armed)
            {
                self.sooner.notify_one();
            }
            events
        };
        for event in events {
            let sink = self.sinks.lock().unwrap().get(&event.owner()).cloned();
            if let Some(sink) = sink {
                sink(event);
            }
        }
    }
}
