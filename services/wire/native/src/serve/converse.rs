//! One accepted long-lived stream: reads as its peer sends, writes from a bounded outbox, ends when told.
//! As moe.wire.grpcio.server_stream.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;

use prost::Message;
use tonic::{Code, Status, Streaming};
use tower::service_fn;

use super::{Answer, Request, Route};
use crate::codec::Proto;
use crate::outbox::{outbox, Outbox, Pump};
use crate::settings::Settings;

/// The route of a streaming call: `talk` is run as a task for each, until it returns; it ends the outbox.
pub fn route<Rx, Tx, Talk, Task>(settings: &Settings, talk: Talk) -> Route
where
    Rx: Message + Default + Send + 'static,
    Tx: Message + Send + 'static,
    Talk: Fn(Streaming<Rx>, Outbox<Tx>) -> Task + Clone + Send + Sync + 'static,
    Task: Future<Output = ()> + Send + 'static,
{
    let (longest, waiting) = (settings.max_message_bytes, settings.max_outbox_bytes);
    Arc::new(move |request: Request| -> Answer {
        let talk = talk.clone();
        Box::pin(async move {
            let open = service_fn(move |request: tonic::Request<Streaming<Rx>>| {
                let (outbox, pump) = outbox::<Tx>(waiting);
                tokio::spawn(talk(request.into_inner(), outbox));
                async { Ok::<_, Status>(tonic::Response::new(pump)) as Opened<Tx> }
            });
            tonic::server::Grpc::new(Proto::<Tx, Rx>::default())
                .max_decoding_message_size(longest)
                .max_encoding_message_size(longest)
                .streaming(open, request)
                .await
        })
    })
}

type Opened<Tx> = Result<tonic::Response<Pump<Tx>>, Status>;

/// Serves a stream until it is over. A peer that does not read is not read either: requests wait at it while half of
/// the outbox is full.
///
/// handle: called with every message; its error ends the stream. settled: awaited when the peer has said its last word,
/// for the answers that it still expects.
pub async fn converse<Rx, Tx>(
    mut requests: Streaming<Rx>,
    outbox: &Outbox<Tx>,
    mut handle: impl FnMut(Rx) -> Result<(), Status>,
    settled: impl Future<Output = ()>,
) {
    let mut over = pin!(outbox.over());
    loop {
        let next = tokio::select! {
            biased;
            () = &mut over => return,
            next = requests.message() => next,
        };
        match next {
            Ok(Some(message)) => {
                if let Err(status) = handle(message) {
                    outbox.end(Some(status));
                    return;
                }
            }
            Ok(None) => break,
            Err(status) => {
                outbox.end(Some(as_others_say(status)));
                return;
            }
        }
        if outbox.is_half_full() {
            outbox.wait_below(outbox.max_bytes() / 2).await;
        }
    }
    tokio::select! {
        () = over => {}
        () = settled => outbox.end(None),
    }
}

/// The first message of a stream; None when the peer ends it without one.
pub async fn first_message<Rx>(requests: &mut Streaming<Rx>) -> Result<Option<Rx>, Status> {
    requests.message().await.map_err(as_others_say)
}

/// gRPC's other implementations call a message that is too long RESOURCE_EXHAUSTED.
fn as_others_say(status: Status) -> Status {
    match status.code() {
        Code::OutOfRange => Status::resource_exhausted(status.message()),
        _ => status,
    }
}
