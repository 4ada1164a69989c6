//! One life-long stream to one endpoint, dialled again with back-off whenever it breaks.

use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use http::uri::PathAndQuery;
use hyper_util::rt::TokioIo;
use prost::Message;
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tonic::transport::{Channel, Endpoint, Uri};
use tonic::{Request, Status};
use tower::service_fn;

use crate::backoff::Backoff;
use crate::codec::Proto;
use crate::logs::{log, Level};
use crate::outbox::{outbox, Outbox, Requests};
use crate::quiet::QuietStream;
use crate::settings::{Settings, FRAME_BYTES, WINDOW_BYTES};

/// Who uses a link; called by the task of the stream, must not block.
pub trait End<Rx>: Send + Sync + 'static {
    /// The stream is open; its first message came.
    fn opened(&self, first: Rx);
    /// Another message came.
    fn received(&self, message: Rx);
    /// The stream broke or could not be opened; whatever was sent and not answered is lost.
    fn lost(&self, message: &str);
}

/// Connecting: what is sent waits for the stream to open. Waiting: for the next attempt, nothing can be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Connecting,
    Open,
    Waiting,
    Closed,
}

struct Shared<Tx> {
    state: State,
    outbox: Option<Outbox<Tx>>,
    /// What the next attempt sends, once it was called for.
    called_for: Option<Requests<Tx>>,
    /// Called for while an attempt was under way, which may have begun too early.
    again: bool,
    task: Option<AbortHandle>,
}

pub struct Link<Tx> {
    pub endpoint: String,
    shared: Mutex<Shared<Tx>>,
    max_outbox_bytes: usize,
    called: Notify,
}

/// Why a message can't be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unsent {
    /// The stream is not there, and not being opened.
    Waiting,
    /// The peer has stopped reading.
    Full,
}

impl<Tx> Link<Tx>
where
    Tx: Message + Clone + Send + Sync + 'static,
{
    /// Dials. hello: the first message to send, where there is one.
    pub fn dial<Rx>(
        endpoint: &str,
        path: &'static str,
        hello: Option<Tx>,
        end: Arc<dyn End<Rx>>,
        settings: Settings,
        runtime: &tokio::runtime::Handle,
    ) -> Arc<Self>
    where
        Rx: Message + Default + Send + 'static,
    {
        let (outbox, pump) = outbox(settings.max_outbox_bytes);
        let link = Arc::new(Link {
            endpoint: endpoint.to_string(),
            shared: Mutex::new(Shared {
                state: State::Connecting,
                outbox: Some(outbox),
                called_for: None,
                again: false,
                task: None,
            }),
            max_outbox_bytes: settings.max_outbox_bytes,
            called: Notify::new(),
        });
        let stream = Stream {
            path,
            hello,
            end,
            settings,
            link: link.clone(),
        };
        let task = runtime.spawn(stream.run(Requests(pump)));
        link.shared.lock().unwrap().task = Some(task.abort_handle());
        link
    }

    /// Queues a message; it is sent when the stream is open.
    pub fn send(&self, message: Tx) -> Result<(), Unsent> {
        let outbox = {
            let shared = self.shared.lock().unwrap();
            match (shared.state, &shared.outbox) {
                (State::Connecting | State::Open, Some(outbox)) => outbox.clone(),
                _ => return Err(Unsent::Waiting),
            }
        };
        let size = message.encoded_len();
        if outbox.put(message, size, None) {
            Ok(())
        } else if outbox.is_gone() {
            Err(Unsent::Waiting)
        } else {
            Err(Unsent::Full)
        }
    }

    pub fn state(&self) -> State {
        self.shared.lock().unwrap().state
    }

    /// Cuts a wait between two attempts short: the peer is said to be back. From now on messages wait for the stream.
    pub fn redial(&self) {
        let mut shared = self.shared.lock().unwrap();
        shared.again = shared.state == State::Connecting;
        if shared.state == State::Waiting {
            let (outbox, pump) = outbox(self.max_outbox_bytes);
            shared.state = State::Connecting;
            shared.outbox = Some(outbox);
            shared.called_for = Some(Requests(pump));
            self.called.notify_one();
        }
    }

    /// Whether the peer was said to be back since the last time this was asked.
    fn take_again(&self) -> bool {
        std::mem::take(&mut self.shared.lock().unwrap().again)
    }

    /// Begins an attempt, called for or not; None when the link is closed.
    fn begin(&self) -> Option<Requests<Tx>> {
        let mut shared = self.shared.lock().unwrap();
        if shared.state == State::Closed {
            return None;
        }
        if let Some(requests) = shared.called_for.take() {
            return Some(requests);
        }
        let (outbox, pump) = outbox(self.max_outbox_bytes);
        shared.state = State::Connecting;
        shared.outbox = Some(outbox);
        Some(Requests(pump))
    }

    /// Ends the stream for good; the end is not told.
    pub fn close(&self) {
        let mut shared = self.shared.lock().unwrap();
        shared.state = State::Closed;
        shared.outbox = None;
        if let Some(task) = shared.task.take() {
            task.abort();
        }
    }

    fn set(&self, state: State, outbox: Option<Outbox<Tx>>) -> bool {
        let mut shared = self.shared.lock().unwrap();
        if shared.state == State::Closed {
            return false;
        }
        shared.state = state;
        if state != State::Open {
            shared.outbox = outbox;
        }
        true
    }
}

struct Stream<Tx, Rx> {
    path: &'static str,
    hello: Option<Tx>,
    end: Arc<dyn End<Rx>>,
    settings: Settings,
    link: Arc<Link<Tx>>,
}

impl<Tx, Rx> Stream<Tx, Rx>
where
    Tx: Message + Clone + Send + Sync + 'static,
    Rx: Message + Default + Send + 'static,
{
    async fn run(self, first: Requests<Tx>) {
        let mut backoff = Backoff::default();
        let mut next = Some(first);
        loop {
            let Some(requests) = next.take().or_else(|| self.link.begin()) else {
                return;
            };
            let mut opened_at = None;
            let reason = self.attempt(requests, &mut opened_at).await;
            let lasted = opened_at.map_or(Duration::ZERO, |at: Instant| at.elapsed());
            let level = if opened_at.is_some() {
                Level::Warning
            } else {
                Level::Debug
            };
            log(level, format!("stream to {}: {reason}", self.link.endpoint));
            if !self.link.set(State::Waiting, None) {
                return;
            }
            self.end.lost(&reason);
            let _ =
                tokio::time::timeout(backoff.next_wait(lasted), self.link.called.notified()).await;
        }
    }

    /// Dials, talks until the stream ends, and returns why it did.
    async fn attempt(&self, requests: Requests<Tx>, opened_at: &mut Option<Instant>) -> String {
        let opening = tokio::time::timeout(self.settings.open_timeout, self.open(requests));
        let (first, mut responses) = match opening.await {
            Err(_) => {
                return format!(
                    "no answer within {} s of dialling",
                    self.settings.open_timeout.as_secs_f64()
                )
            }
            Ok(Err(reason)) => return reason,
            Ok(Ok(opened)) => opened,
        };
        if !self.link.set(State::Open, None) {
            return "closed".to_string();
        }
        *opened_at = Some(Instant::now());
        log(
            Level::Info,
            format!("stream to {} is open", self.link.endpoint),
        );
        self.end.opened(first);
        loop {
            match responses.message().await {
                Ok(Some(message)) => self.end.received(message),
                Ok(None) => return "ended by the peer (OK)".to_string(),
                Err(status) => return in_words(&status),
            }
        }
    }

    async fn open(&self, requests: Requests<Tx>) -> Result<(Rx, tonic::Streaming<Rx>), String> {
        let channel = loop {
            match connect(&self.link.endpoint, &self.settings).await {
                Ok(channel) => break channel,
                Err(reason) if !self.link.take_again() => return Err(reason),
                Err(_) => {}
            }
        };
        let mut client = tonic::client::Grpc::new(channel)
            .max_decoding_message_size(self.settings.max_message_bytes)
            .max_encoding_message_size(self.settings.max_message_bytes);
        client
            .ready()
            .await
            .map_err(|error| format!("UNAVAILABLE: {}", deepest(&error)))?;
        let path = PathAndQuery::from_static(self.path);
        let hello = tokio_stream::iter(self.hello.clone());
        let requests = tokio_stream::StreamExt::chain(hello, requests);
        let response = client
            .streaming(Request::new(requests), path, Proto::<Tx, Rx>::default())
            .await
            .map_err(|status| in_words(&status))?;
        let mut responses = response.into_inner();
        match responses.message().await {
            Ok(Some(first)) => Ok((first, responses)),
            Ok(None) => Err("ended by the peer (OK)".to_string()),
            Err(status) => Err(in_words(&status)),
        }
    }
}

/// A connection to a gRPC target, `unix:/path` or `host:port`.
pub async fn connect(endpoint: &str, settings: &Settings) -> Result<Channel, String> {
    let connecting = endpoint_of(endpoint, settings)?;
    let connected = match endpoint.strip_prefix("unix:") {
        Some(path) => {
            let path = path.to_string();
            let connector = service_fn(move |_: Uri| {
                let path = path.clone();
                Box::pin(async move { QuietStream::connect(&path).await.map(TokioIo::new) })
                    as Pin<Box<dyn std::future::Future<Output = _> + Send>>
            });
            connecting.connect_with_connector(connector).await
        }
        None => connecting.connect().await,
    };
    connected.map_err(|error| format!("UNAVAILABLE: {}", deepest(&error)))
}

/// How to dial, without dialling.
pub fn endpoint_of(endpoint: &str, settings: &Settings) -> Result<Endpoint, String> {
    // Over a unix socket the authority is a name that every server takes.
    let uri = if endpoint.starts_with("unix:") {
        "http://localhost".to_string()
    } else {
        format!("http://{endpoint}")
    };
    let endpoint = Endpoint::from_shared(uri)
        .map_err(|error| format!("{endpoint}: not a gRPC target: {error}"))?;
    let mut endpoint = endpoint
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(WINDOW_BYTES)
        .max_frame_size(FRAME_BYTES)
        .connect_timeout(settings.open_timeout)
        .tcp_nodelay(true);
    if !settings.keepalive.is_zero() {
        endpoint = endpoint
            .http2_keep_alive_interval(settings.keepalive)
            .keep_alive_timeout(settings.keepalive_timeout)
            .keep_alive_while_idle(true);
    }
    Ok(endpoint)
}

fn in_words(status: &Status) -> String {
    format!("{}: {}", code_name(status), status.message())
}

fn code_name(status: &Status) -> String {
    // As gRPC names them: FAILED_PRECONDITION for FailedPrecondition.
    let mut name = String::new();
    for letter in format!("{:?}", status.code()).chars() {
        if letter.is_uppercase() && !name.is_empty() {
            name.push('_');
        }
        name.extend(letter.to_uppercase());
    }
    name
}

/// The cause at the bottom of a chain of errors, which says what happened.
pub(crate) fn deepest(error: &dyn std::error::Error) -> String {
    let mut deepest = error;
    while let Some(source) = deepest.source() {
        deepest = source;
    }
    deepest.to_string()
}
