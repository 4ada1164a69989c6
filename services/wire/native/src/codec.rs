//! gRPC messages in and out of tonic: prost's encoding, with payloads that are not copied when they are read.

use std::marker::PhantomData;

use prost::Message;
use tonic::codec::{BufferSettings, Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::Status;

/// Bytes gathered before they are handed to the transport.
const YIELD_BYTES: usize = 256 << 10;
const BUFFER_BYTES: usize = 8 << 10;

/// Encodes `Out`, decodes `In`.
pub struct Proto<Out, In>(PhantomData<(Out, In)>);

impl<Out, In> Default for Proto<Out, In> {
    fn default() -> Self {
        Proto(PhantomData)
    }
}

impl<Out, In> Codec for Proto<Out, In>
where
    Out: Message + Send + 'static,
    In: Message + Default + Send + 'static,
{
    type Encode = Out;
    type Decode = In;
    type Encoder = Writer<Out>;
    type Decoder = Reader<In>;

    fn encoder(&mut self) -> Self::Encoder {
        Writer(PhantomData)
    }

    fn decoder(&mut self) -> Self::Decoder {
        Reader(PhantomData)
    }
}

pub struct Writer<T>(PhantomData<T>);

impl<T: Message> Encoder for Writer<T> {
    type Item = T;
    type Error = Status;

    fn encode(&mut self, item: T, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        item.encode(buffer)
            .map_err(|error| Status::internal(error.to_string()))
    }

    fn buffer_settings(&self) -> BufferSettings {
        BufferSettings::new(BUFFER_BYTES, YIELD_BYTES)
    }
}

pub struct Reader<T>(PhantomData<T>);

impl<T: Message + Default> Decoder for Reader<T> {
    type Item = T;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<T>, Status> {
        T::decode(buffer)
            .map(Some)
            .map_err(|error| Status::invalid_argument(format!("message: {error}")))
    }

    fn buffer_settings(&self) -> BufferSettings {
        BufferSettings::new(BUFFER_BYTES, YIELD_BYTES)
    }
}
