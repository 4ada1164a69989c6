//! One gRPC server on one address: the streams of the wire in native code, every other path passed through.
//!
//! Health, reflection and moe.control.v1 stay with the grpcio server behind (`pass`), on a private socket: they are
//! called seldom and are the runtime's. Whoever serves gives a handler for each of its own paths (`converse`).

pub mod converse;
pub mod listen;
pub mod pass;

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::{oneshot, watch};
use tonic::body::Body;
use tower::Service;

pub use listen::Listener;
use pass::BackEnd;

use crate::logs::{log, Level};
use crate::settings::{Settings, FRAME_BYTES, WINDOW_BYTES};

pub type Request = http::Request<Body>;
pub type Response = http::Response<Body>;
pub type Answer = Pin<Box<dyn Future<Output = Response> + Send>>;

/// Answers the calls of one path.
pub type Route = Arc<dyn Fn(Request) -> Answer + Send + Sync>;

/// What is served. back_end: the gRPC target that gets all other paths; without one they are UNIMPLEMENTED.
pub struct Served {
    pub routes: Vec<(&'static str, Route)>,
    pub back_end: Option<String>,
}

struct Inner {
    routes: Vec<(&'static str, Route)>,
    back_end: Option<BackEnd>,
}

#[derive(Clone)]
struct Paths(Arc<Inner>);

impl Service<Request> for Paths {
    type Response = Response;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request) -> Self::Future {
        let path = request.uri().path();
        let found = self.0.routes.iter().find(|(at, _)| *at == path);
        let answer = match (found, &self.0.back_end) {
            (Some((_, route)), _) => route(request),
            (None, Some(back_end)) => back_end.answer(request),
            (None, None) => {
                let message = format!("{path} is not served here");
                Box::pin(async { tonic::Status::unimplemented(message).into_http() })
            }
        };
        Box::pin(async { Ok(answer.await) })
    }
}

/// A server that runs as a task; it ends at once with its runtime.
pub struct Server {
    stop: Mutex<Option<oneshot::Sender<()>>>,
    ended: watch::Receiver<bool>,
}

impl Server {
    /// Serves on a socket that listens. The error says why that can't be.
    pub fn start(
        listener: Listener,
        served: Served,
        settings: &Settings,
        runtime: &Handle,
    ) -> std::io::Result<Server> {
        let _context = runtime.enter();
        let incoming = listener.accepting()?;
        let back_end = match &served.back_end {
            Some(target) => Some(BackEnd::new(target, settings).map_err(std::io::Error::other)?),
            None => None,
        };
        let paths = Paths(Arc::new(Inner {
            routes: served.routes,
            back_end,
        }));
        let (stop, stopped) = oneshot::channel::<()>();
        let (tell, ended) = watch::channel(false);
        let serving = transport(settings).serve_with_incoming_shutdown(paths, incoming, async {
            // An error means that nobody can stop it any more: it ends with its runtime.
            if stopped.await.is_err() {
                std::future::pending::<()>().await;
            }
        });
        runtime.spawn(async move {
            if let Err(error) = serving.await {
                log(Level::Warning, format!("the server ended: {error}"));
            }
            let _ = tell.send(true);
        });
        Ok(Server {
            stop: Mutex::new(Some(stop)),
            ended,
        })
    }

    /// Takes no new connections or calls; connections end when their streams have.
    pub fn stop(&self) {
        if let Some(stop) = self.stop.lock().unwrap().take() {
            let _ = stop.send(());
        }
    }

    /// To wait for a stopped server's last connection with.
    pub fn ended_later(&self) -> Ended {
        Ended(self.ended.clone())
    }
}

/// The end of a server.
pub struct Ended(watch::Receiver<bool>);

impl Ended {
    /// Returns when no connection is left, or after the timeout; false then.
    pub async fn within(mut self, timeout: Duration) -> bool {
        let waited = tokio::time::timeout(timeout, self.0.wait_for(|ended| *ended)).await;
        waited.is_ok()
    }
}

fn transport(settings: &Settings) -> tonic::transport::Server {
    let keepalive = (!settings.keepalive.is_zero()).then_some(settings.keepalive);
    tonic::transport::Server::builder()
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(WINDOW_BYTES)
        .max_frame_size(FRAME_BYTES)
        .max_concurrent_streams(settings.max_concurrent_streams)
        .http2_keepalive_interval(keepalive)
        .http2_keepalive_timeout(Some(settings.keepalive_timeout))
}
