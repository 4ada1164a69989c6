//! Calls that are not the wire's, handed on as they are, streaming both ways, to the grpcio server of this process.

use std::sync::Arc;

use hyper_util::rt::TokioIo;
use tonic::body::Body;
use tonic::transport::{Channel, Uri};
use tonic::Status;
use tower::{service_fn, Service, ServiceExt};

use super::{Answer, Request};
use crate::link::endpoint_of;
use crate::quiet::QuietStream;
use crate::settings::Settings;

pub(super) struct BackEnd {
    target: Arc<str>,
    channel: Channel,
}

impl BackEnd {
    /// target: `unix:/path` or `host:port`; dialled at the first call, and again when the connection broke.
    pub fn new(target: &str, settings: &Settings) -> Result<BackEnd, String> {
        let endpoint = endpoint_of(target, settings)?;
        let channel = match target.strip_prefix("unix:") {
            Some(path) => {
                let path = path.to_string();
                endpoint.connect_with_connector_lazy(service_fn(move |_: Uri| {
                    let path = path.clone();
                    async move { QuietStream::connect(&path).await.map(TokioIo::new) }
                }))
            }
            None => endpoint.connect_lazy(),
        };
        Ok(BackEnd {
            target: target.into(),
            channel,
        })
    }

    pub fn answer(&self, request: Request) -> Answer {
        let (mut channel, target) = (self.channel.clone(), self.target.clone());
        Box::pin(async move {
            let path = request.uri().path().to_string();
            let answered = match channel.ready().await {
                Ok(ready) => ready.call(request).await,
                Err(error) => Err(error),
            };
            answered.unwrap_or_else(|error| {
                let why = crate::link::deepest(&error);
                let message =
                    format!("{path} is answered by {target}, which can't be reached: {why}");
                Status::unavailable(message).into_http::<Body>()
            })
        })
    }
}
