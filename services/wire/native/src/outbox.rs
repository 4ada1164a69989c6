//! What waits to be written on one stream, bounded in bytes; the transport takes from it as its peer reads.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use tokio::sync::Notify;
use tokio_stream::Stream;
use tonic::Status;

/// Bookkeeping of a message, so that empty ones are not free.
const BYTES_PER_MESSAGE: usize = 128;

/// Called once: true when the transport took the message, false when it never will.
pub type Done = Box<dyn FnOnce(bool) + Send>;

struct Entry<M> {
    message: M,
    size: usize,
    done: Option<Done>,
}

struct Inner<M> {
    waiting: VecDeque<Entry<M>>,
    bytes: usize,
    waker: Option<Waker>,
    ended: bool,
    status: Option<Status>,
    gone: bool,
}

struct Shared<M> {
    inner: Mutex<Inner<M>>,
    shrunk: Notify,
    max_bytes: usize,
    writers: AtomicUsize,
}

/// The end that is written to. The stream ends, once what is queued is written, when nobody has it any more.
pub struct Outbox<M>(Arc<Shared<M>>);

/// The end that the transport reads.
pub struct Pump<M>(Arc<Shared<M>>);

impl<M> Clone for Outbox<M> {
    fn clone(&self) -> Self {
        self.0.writers.fetch_add(1, Ordering::Relaxed);
        Outbox(self.0.clone())
    }
}

impl<M> Drop for Outbox<M> {
    fn drop(&mut self) {
        if self.0.writers.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.end(None);
        }
    }
}

/// Both ends of a new outbox. A message larger than the bound is taken when nothing else waits.
pub fn outbox<M>(max_bytes: usize) -> (Outbox<M>, Pump<M>) {
    let inner = Inner {
        waiting: VecDeque::new(),
        bytes: 0,
        waker: None,
        ended: false,
        status: None,
        gone: false,
    };
    let shared = Arc::new(Shared {
        inner: Mutex::new(inner),
        shrunk: Notify::new(),
        max_bytes,
        writers: AtomicUsize::new(1),
    });
    (Outbox(shared.clone()), Pump(shared))
}

impl<M> Outbox<M> {
    /// Queues a message; false, and `done` is dropped uncalled, when the bound is reached or the stream is over.
    pub fn put(&self, message: M, size: usize, done: Option<Done>) -> bool {
        let queued = self.put_later(message, size, done);
        if queued {
            self.flush();
        }
        queued
    }

    /// As `put`, but it waits for another message, or `flush`, to go out with.
    pub fn put_later(&self, message: M, size: usize, done: Option<Done>) -> bool {
        let mut inner = self.0.inner.lock().unwrap();
        let size = size + BYTES_PER_MESSAGE;
        if inner.gone || inner.ended || (inner.bytes > 0 && inner.bytes + size > self.0.max_bytes) {
            return false;
        }
        inner.waiting.push_back(Entry {
            message,
            size,
            done,
        });
        inner.bytes += size;
        true
    }

    /// Has the transport take what waits.
    pub fn flush(&self) {
        let waker = {
            let mut inner = self.0.inner.lock().unwrap();
            match inner.waiting.is_empty() {
                true => None,
                false => inner.waker.take(),
            }
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Ends the stream: once what is queued is written, or at once with an error.
    pub fn end(&self, status: Option<Status>) {
        let mut inner = self.0.inner.lock().unwrap();
        if !inner.ended {
            inner.ended = true;
            inner.status = status;
        }
        let waker = inner.waker.take();
        drop(inner);
        self.0.shrunk.notify_waiters();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Returns when the stream is over: it was told to end, or the transport dropped its end.
    pub async fn over(&self) {
        loop {
            let changed = self.0.shrunk.notified();
            {
                let inner = self.0.inner.lock().unwrap();
                if inner.gone || inner.ended {
                    return;
                }
            }
            changed.await;
        }
    }

    /// Whether so many bytes wait that the peer had better not be read either.
    pub fn is_half_full(&self) -> bool {
        self.0.inner.lock().unwrap().bytes > self.0.max_bytes / 2
    }

    /// Returns when at most so many bytes wait, or nobody reads any more.
    pub async fn wait_below(&self, bytes: usize) {
        loop {
            let shrunk = self.0.shrunk.notified();
            {
                let inner = self.0.inner.lock().unwrap();
                if inner.bytes <= bytes || inner.gone {
                    return;
                }
            }
            shrunk.await;
        }
    }

    /// The most bytes that may wait.
    pub fn max_bytes(&self) -> usize {
        self.0.max_bytes
    }

    /// Whether the stream was told to end, or the transport has dropped its end.
    pub fn is_over(&self) -> bool {
        let inner = self.0.inner.lock().unwrap();
        inner.gone || inner.ended
    }

    /// Whether the transport has dropped its end.
    pub fn is_gone(&self) -> bool {
        self.0.inner.lock().unwrap().gone
    }
}

impl<M> Pump<M> {
    fn poll_message(&self, context: &mut Context<'_>) -> Poll<Option<Result<M, Status>>> {
        let mut inner = self.0.inner.lock().unwrap();
        if let Some(status) = inner.status.take() {
            return Poll::Ready(Some(Err(status)));
        }
        let Some(entry) = inner.waiting.pop_front() else {
            if inner.ended {
                return Poll::Ready(None);
            }
            inner.waker = Some(context.waker().clone());
            return Poll::Pending;
        };
        inner.bytes -= entry.size;
        drop(inner);
        self.0.shrunk.notify_waiters();
        if let Some(done) = entry.done {
            done(true);
        }
        Poll::Ready(Some(Ok(entry.message)))
    }
}

impl<M> Stream for Pump<M> {
    type Item = Result<M, Status>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.poll_message(context)
    }
}

impl<M> Drop for Pump<M> {
    fn drop(&mut self) {
        let left = {
            let mut inner = self.0.inner.lock().unwrap();
            inner.gone = true;
            inner.bytes = 0;
            std::mem::take(&mut inner.waiting)
        };
        self.0.shrunk.notify_waiters();
        for entry in left {
            if let Some(done) = entry.done {
                done(false);
            }
        }
    }
}

/// A pump whose items can't fail: what a client sends.
pub struct Requests<M>(pub Pump<M>);

impl<M> Stream for Requests<M> {
    type Item = M;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<M>> {
        self.0
            .poll_message(context)
            .map(|next| next.and_then(Result::ok))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use tokio_stream::StreamExt;

    fn counting(counter: &Arc<AtomicUsize>, at: usize) -> Option<Done> {
        let counter = counter.clone();
        Some(Box::new(move |written| {
            counter.fetch_add(if written { 1 } else { at }, Ordering::SeqCst);
        }))
    }

    #[tokio::test]
    async fn takes_an_oversized_message_only_when_nothing_waits() {
        let (outbox, mut pump) = outbox::<u8>(1000);
        assert!(outbox.put(1, 5000, None));
        assert!(!outbox.put(2, 1, None));
        assert_eq!(pump.next().await.unwrap().unwrap(), 1);
        assert!(outbox.put(3, 1, None));
    }

    #[tokio::test]
    async fn tells_what_was_written_and_what_never_will_be() {
        let told = Arc::new(AtomicUsize::new(0));
        let (outbox, mut pump) = outbox::<u8>(1000);
        outbox.put(1, 1, counting(&told, 100));
        outbox.put(2, 1, counting(&told, 100));
        pump.next().await;
        drop(pump);
        assert_eq!(told.load(Ordering::SeqCst), 101);
        assert!(!outbox.put(3, 1, None));
        outbox.wait_below(0).await;
    }

    #[tokio::test]
    async fn what_may_wait_goes_out_with_the_next_message_or_when_it_is_told_to() {
        let (outbox, mut pump) = outbox::<u8>(1000);
        let reading = tokio::spawn(async move {
            let first = pump.next().await.unwrap().unwrap();
            (first, pump)
        });
        tokio::task::yield_now().await;
        outbox.put_later(1, 1, None);
        tokio::task::yield_now().await;
        assert!(!reading.is_finished());
        outbox.flush();
        let (first, mut pump) = reading.await.unwrap();
        assert_eq!(first, 1);
        outbox.put_later(2, 1, None);
        outbox.put(3, 1, None);
        assert_eq!(pump.next().await.unwrap().unwrap(), 2);
        assert_eq!(pump.next().await.unwrap().unwrap(), 3);
    }

    #[tokio::test]
    async fn ends_when_its_last_writer_is_gone() {
        let (outbox, mut pump) = outbox::<u8>(1000);
        let other = outbox.clone();
        outbox.put(1, 1, None);
        drop(outbox);
        other.put(2, 1, None);
        drop(other);
        assert_eq!(pump.next().await.unwrap().unwrap(), 1);
        assert_eq!(pump.next().await.unwrap().unwrap(), 2);
        assert!(pump.next().await.is_none());
    }

    #[tokio::test]
    async fn ends_after_what_is_queued_or_at_once_with_an_error() {
        let (outbox, mut pump) = self::outbox::<u8>(1000);
        outbox.put(1, 1, None);
        outbox.end(None);
        assert_eq!(pump.next().await.unwrap().unwrap(), 1);
        assert!(pump.next().await.is_none());
        let (outbox, mut pump) = self::outbox::<u8>(1000);
        outbox.put(1, 1, None);
        outbox.end(Some(Status::aborted("enough")));
        assert!(pump.next().await.unwrap().is_err());
    }
}
