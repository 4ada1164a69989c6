//! A client that says what it likes: bytes as messages, messages of any length.

use std::marker::PhantomData;

use bytes::{Buf, BufMut, Bytes};
use moe_wire_native::link::connect;
use moe_wire_native::outbox::{outbox, Outbox, Requests};
use moe_wire_native::settings::Settings;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::{Status, Streaming};

/// Sends bytes as they are and decodes `Rx`.
pub struct Raw<Rx>(PhantomData<Rx>);

pub struct Ends<Rx>(PhantomData<Rx>);

impl<Rx: prost::Message + Default + Send + 'static> Codec for Raw<Rx> {
    type Encode = Bytes;
    type Decode = Rx;
    type Encoder = Ends<Rx>;
    type Decoder = Ends<Rx>;

    fn encoder(&mut self) -> Ends<Rx> {
        Ends(PhantomData)
    }

    fn decoder(&mut self) -> Ends<Rx> {
        Ends(PhantomData)
    }
}

impl<Rx> Encoder for Ends<Rx> {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put(item);
        Ok(())
    }
}

impl<Rx: prost::Message + Default> Decoder for Ends<Rx> {
    type Item = Rx;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Rx>, Status> {
        Rx::decode(buffer.copy_to_bytes(buffer.remaining()))
            .map(Some)
            .map_err(|error| Status::internal(error.to_string()))
    }
}

/// A call that is open. Dropping it hangs up.
pub struct Talk<Rx> {
    pub say: Outbox<Bytes>,
    pub hear: Streaming<Rx>,
}

impl<Rx: prost::Message + Default + Send + 'static> Talk<Rx> {
    pub async fn open(target: &str, path: &'static str) -> Result<Talk<Rx>, Status> {
        let settings = Settings::default();
        let channel = connect(target, &settings)
            .await
            .map_err(Status::unavailable)?;
        Talk::over(channel, path).await
    }

    /// On a connection that others use too.
    pub async fn over(
        channel: tonic::transport::Channel,
        path: &'static str,
    ) -> Result<Talk<Rx>, Status> {
        let mut client = tonic::client::Grpc::new(channel)
            .max_decoding_message_size(usize::MAX)
            .max_encoding_message_size(usize::MAX);
        client
            .ready()
            .await
            .map_err(|error| Status::unavailable(error.to_string()))?;
        let (say, pump) = outbox(usize::MAX);
        let path = http::uri::PathAndQuery::from_static(path);
        let request = tonic::Request::new(Requests(pump));
        let response = client
            .streaming(request, path, Raw::<Rx>(PhantomData))
            .await?;
        Ok(Talk {
            say,
            hear: response.into_inner(),
        })
    }

    pub fn send(&self, message: &impl prost::Message) {
        assert!(self.say.put(message.encode_to_vec().into(), 0, None));
    }

    pub async fn next(&mut self) -> Result<Option<Rx>, Status> {
        tokio::time::timeout(super::PATIENCE, self.hear.message())
            .await
            .expect("an answer")
    }

    /// What ends the stream, whatever comes before.
    pub async fn end(&mut self) -> Result<(), Status> {
        while self.next().await?.is_some() {}
        Ok(())
    }
}

pub fn block_on<F: std::future::Future>(future: F) -> F::Output {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
        .block_on(future)
}
