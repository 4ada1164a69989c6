//! The aggregator's end of the wire, complete in native code: routers' plans in, answers out, partials collected from
//! the experts. As moe.wire.grpcio.aggregator_server, around the same policy (`combiner`).
//!
//! A thread of its own drives all streams; every method may be called from any other thread.

pub mod plans;
mod stream;

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::runtime::{Builder, Handle};
use tokio::sync::{mpsc, oneshot, Notify};

use crate::collector::Collector;
use crate::combiner::{Combiner, Limits, Tally};
use crate::host::Host;
use crate::serve::{Listener, Served, Server};
use crate::settings::Settings;
use stream::Combine;

/// For connections to end after their last stream did.
const LAST_WRITES: Duration = Duration::from_secs(1);

/// Counters since the start; calls and Collect streams that are open now.
#[derive(Clone, Copy, Debug, Default)]
pub struct Figures {
    pub tally: Tally,
    pub open: usize,
    pub sources: usize,
}

#[derive(Default)]
struct Streams {
    numbers: u64,
    open: HashMap<u64, Arc<Combine>>,
    draining: bool,
}

/// What the streams share.
pub(crate) struct Core {
    /// Experts know the aggregator by it, and `Ready` tells it to the routers: a part that was meant for an earlier life
    /// of this name finds no collector, and is no silent loss.
    collect_name: String,
    host: Arc<Host>,
    streams: Mutex<Streams>,
    /// A stream has no open call, or is gone.
    settled: Notify,
}

pub struct Aggregator {
    core: Arc<Core>,
    collector: Collector,
    runtime: Handle,
    server: Server,
    thread: Mutex<Option<(oneshot::Sender<()>, JoinHandle<()>)>>,
}

impl Aggregator {
    /// Serves on a listening socket. instance: this process's identity, new at each start. back_end: the gRPC target
    /// that answers every path but the wire's own.
    pub fn start(
        name: &str,
        instance: &str,
        limits: Limits,
        settings: Settings,
        listener: Listener,
        back_end: Option<String>,
    ) -> std::io::Result<Aggregator> {
        let runtime = Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .build()?;
        let handle = runtime.handle().clone();
        let collect_name = format!("{name}.{instance}");
        let host = Host::new(Combiner::new(limits));
        let core = Arc::new(Core {
            collect_name: collect_name.clone(),
            host: host.clone(),
            streams: Mutex::default(),
            settled: Notify::new(),
        });
        let served = Served {
            routes: vec![stream::route(&core, &settings)],
            back_end,
        };
        let server = Server::start(listener, served, &settings, &handle)?;
        let collector = Collector::new(&collect_name, host.clone(), settings, handle.clone());
        runtime.spawn(host.timer());
        let (end, ended) = oneshot::channel::<()>();
        let thread = std::thread::Builder::new()
            .name("moe-aggregator".into())
            .spawn(move || {
                let _ = runtime.block_on(ended);
                runtime.shutdown_background();
            })?;
        Ok(Aggregator {
            core,
            collector,
            runtime: handle,
            server,
            thread: Mutex::new(Some((end, thread))),
        })
    }

    /// The expert endpoints that exist now, ready or not.
    pub fn set_experts(&self, endpoints: &[String]) {
        self.collector.set_endpoints(endpoints);
    }

    pub fn figures(&self) -> Figures {
        let (tally, open) = self.core.host.figures();
        Figures {
            tally,
            open,
            sources: self.collector.open_sources(),
        }
    }

    /// Takes no new plans, lets the open calls be answered, ends each router's stream as soon as its own are, then the
    /// server. A plan that comes too late ends with its stream, and its router redoes it elsewhere. False when that
    /// took longer than the timeout, or after `close`.
    pub fn drained(&self, timeout: Duration) -> bool {
        let (tell, mut told) = mpsc::channel(1);
        let (core, ended) = (self.core.clone(), self.server.ended_later());
        let stop = {
            self.core.begin_drain();
            async move {
                let settled = tokio::time::timeout(timeout, core.until_settled()).await;
                core.end_streams();
                let _ = tell.send(settled.is_ok()).await;
            }
        };
        self.runtime.spawn(stop);
        let settled = told.blocking_recv().unwrap_or(false);
        self.server.stop();
        let (tell, mut told) = mpsc::channel(1);
        self.runtime.spawn(async move {
            ended.within(LAST_WRITES).await;
            let _ = tell.send(()).await;
        });
        told.blocking_recv();
        settled
    }

    /// Ends all streams at once.
    pub fn close(&self) {
        let thread = self.thread.lock().unwrap().take();
        if let Some((end, thread)) = thread {
            let _ = end.send(());
            let _ = thread.join();
        }
    }
}

impl Drop for Aggregator {
    fn drop(&mut self) {
        self.close();
    }
}

impl Core {
    /// Streams without an open call end at once.
    fn begin_drain(&self) {
        let streams: Vec<Arc<Combine>> = {
            let mut streams = self.streams.lock().unwrap();
            streams.draining = true;
            streams.open.values().cloned().collect()
        };
        for stream in streams {
            stream.drain();
        }
    }

    async fn until_settled(&self) {
        loop {
            let changed = self.settled.notified();
            let settled = {
                let streams = self.streams.lock().unwrap();
                streams.open.values().all(|stream| stream.is_settled())
            };
            if settled {
                return;
            }
            changed.await;
        }
    }

    fn end_streams(&self) {
        let streams: Vec<Arc<Combine>> = {
            let streams = self.streams.lock().unwrap();
            streams.open.values().cloned().collect()
        };
        for stream in streams {
            stream.end();
        }
    }
}
