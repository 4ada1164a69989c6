//! A unix stream that does not wake its process each time the peer reads.
//!
//! The kernel reports a unix socket as writable anew whenever the peer has taken a message, full or not, so that with
//! tokio's own stream every message costs its sender another wake-up. Here only reading is waited for; writing is waited
//! for, on a second descriptor, only while the socket is full.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::pin::Pin;
use std::task::{ready, Context, Poll};

use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};

/// Pieces that one call writes at most; the kernel takes 1024.
const MOST_PIECES: usize = 64;

pub struct QuietStream {
    socket: AsyncFd<UnixStream>,
    /// Another descriptor of the socket while it is full.
    full: Option<AsyncFd<OwnedFd>>,
}

impl QuietStream {
    /// Inside a runtime; a stream that is connected.
    pub fn new(socket: UnixStream) -> io::Result<QuietStream> {
        socket.set_nonblocking(true)?;
        Ok(QuietStream {
            socket: watch(socket, Interest::READABLE)?,
            full: None,
        })
    }

    /// Dials a path. A listener whose backlog is full makes that wait, as tokio does.
    pub async fn connect(path: &str) -> io::Result<QuietStream> {
        let stream = tokio::net::UnixStream::connect(path).await?;
        QuietStream::new(stream.into_std()?)
    }

    fn poll_send(
        &mut self,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        loop {
            let mut writable = match &self.full {
                None => None,
                Some(full) => Some(ready!(full.poll_write_ready(context))?),
            };
            match send(self.socket.get_ref(), pieces) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => match &mut writable {
                    Some(writable) => writable.clear_ready(),
                    None => self.full = Some(self.second()?),
                },
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                sent => return Poll::Ready(sent),
            }
        }
    }

    fn second(&self) -> io::Result<AsyncFd<OwnedFd>> {
        let descriptor = self.socket.get_ref().as_fd().try_clone_to_owned()?;
        watch(descriptor, Interest::WRITABLE)
    }
}

fn watch<T: AsRawFd>(descriptor: T, interest: Interest) -> io::Result<AsyncFd<T>> {
    // SAFETY: an owned descriptor, which names the same open socket until it is dropped with the AsyncFd.
    unsafe { AsyncFd::register_with_interest(descriptor, interest) }
        .map_err(|error| error.into_parts().1)
}

fn send(socket: &UnixStream, pieces: &[io::IoSlice<'_>]) -> io::Result<usize> {
    // SAFETY: a zeroed msghdr is one without name and control data; the pieces live as long as the call, and an IoSlice
    // is an iovec on unix.
    let sent = unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        message.msg_iov = pieces.as_ptr().cast_mut().cast();
        message.msg_iovlen = pieces.len().min(MOST_PIECES) as _;
        libc::sendmsg(socket.as_raw_fd(), &message, libc::MSG_NOSIGNAL)
    };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}

impl AsyncRead for QuietStream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        loop {
            let mut readable = ready!(this.socket.poll_read_ready(context))?;
            // SAFETY: nothing is read from the unfilled part.
            let room = unsafe { buffer.unfilled_mut() };
            let most = room.len();
            // SAFETY: at most `most` bytes are written to the room.
            let got = unsafe {
                let descriptor = this.socket.get_ref().as_raw_fd();
                libc::recv(descriptor, room.as_mut_ptr().cast(), most, 0)
            };
            match usize::try_from(got) {
                Ok(got) => {
                    // Fewer than there was room for: the socket is empty, and asking it again would tell no more.
                    if got > 0 && got < most {
                        readable.clear_ready();
                    }
                    // SAFETY: so many bytes were written.
                    unsafe { buffer.assume_init(got) };
                    buffer.advance(got);
                    return Poll::Ready(Ok(()));
                }
                Err(_) => match io::Error::last_os_error() {
                    error if error.kind() == io::ErrorKind::WouldBlock => readable.clear_ready(),
                    error if error.kind() == io::ErrorKind::Interrupted => {}
                    error => return Poll::Ready(Err(error)),
                },
            }
        }
    }
}

impl AsyncWrite for QuietStream {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.get_mut()
            .poll_send(context, &[io::IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.get_mut().poll_send(context, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    /// All is written: nobody waits for room any more.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().full = None;
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        let ended = self.socket.get_ref().shutdown(std::net::Shutdown::Write);
        Poll::Ready(ended)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    /// More than a socket's buffer takes, so that both ends have to wait.
    const MUCH: usize = 3 << 20;

    #[tokio::test]
    async fn carries_more_than_the_socket_holds_and_then_the_end() {
        let (one, other) = UnixStream::pair().unwrap();
        let mut one = QuietStream::new(one).unwrap();
        let mut other = QuietStream::new(other).unwrap();
        let sent: Vec<u8> = (0..MUCH).map(|at| (at * 7 % 251) as u8).collect();
        let copy = sent.clone();
        let writing = tokio::spawn(async move {
            one.write_all(&copy).await.unwrap();
            one.flush().await.unwrap();
            assert!(one.full.is_none());
            one.shutdown().await.unwrap();
            one
        });
        let mut got = vec![];
        other.read_to_end(&mut got).await.unwrap();
        assert!(got == sent);
        writing.await.unwrap();
    }

    #[tokio::test]
    async fn a_peer_that_is_gone_is_an_error_to_write_to_and_the_end_to_read_from() {
        let (one, other) = UnixStream::pair().unwrap();
        let mut one = QuietStream::new(one).unwrap();
        drop(other);
        assert_eq!(one.read(&mut [0; 8]).await.unwrap(), 0);
        let error = one.write_all(b"word").await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
    }

    #[tokio::test]
    async fn a_reader_that_waits_is_woken() {
        let (one, other) = UnixStream::pair().unwrap();
        let mut one = QuietStream::new(one).unwrap();
        let mut other = QuietStream::new(other).unwrap();
        for word in 0..100u8 {
            let reading = tokio::spawn(async move {
                let mut byte = [0];
                other.read_exact(&mut byte).await.unwrap();
                (other, byte[0])
            });
            tokio::task::yield_now().await;
            one.write_all(&[word]).await.unwrap();
            let (back, got) = reading.await.unwrap();
            assert_eq!(got, word);
            other = back;
        }
    }
}
