//! The socket that a server listens on; it was made by the caller, who knows of permissions and of stale files.
//!
//! Connections are plain: inside a cluster a mesh or a network policy guards them. TLS would wrap `Connection` where
//! `Incoming` makes it, and nothing else would change; it is not there, and no setting pretends that it is.

use std::future::Future;
use std::io;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::task::{ready, Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream, UnixListener};
use tokio::time::Sleep;
use tokio_stream::Stream;
use tonic::transport::server::Connected;

use crate::logs::{log, Level};
use crate::quiet::QuietStream;

/// How long nothing is accepted after that failed, as when file descriptors have run out: no spinning.
const PAUSE: Duration = Duration::from_millis(100);

pub enum Listener {
    Unix(std::os::unix::net::UnixListener),
    Tcp(std::net::TcpListener),
}

impl Listener {
    /// A listening socket, of either family.
    pub fn from_fd(socket: OwnedFd) -> io::Result<Listener> {
        let listener = std::net::TcpListener::from(socket);
        match listener.local_addr() {
            Ok(_) => Ok(Listener::Tcp(listener)),
            // Another family than the internet's: std can't name its address.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                let listener = std::os::unix::net::UnixListener::from(OwnedFd::from(listener));
                listener.local_addr()?;
                Ok(Listener::Unix(listener))
            }
            Err(error) => Err(error),
        }
    }

    /// Listens at `unix:/path` or `host:port`.
    pub fn bind(target: &str) -> io::Result<Listener> {
        match target.strip_prefix("unix:") {
            Some(path) => std::os::unix::net::UnixListener::bind(path).map(Listener::Unix),
            None => std::net::TcpListener::bind(target).map(Listener::Tcp),
        }
    }

    /// The target to dial.
    pub fn target(&self) -> io::Result<String> {
        match self {
            Listener::Unix(listener) => {
                let address = listener.local_addr()?;
                let path = address.as_pathname().unwrap_or(std::path::Path::new(""));
                Ok(format!("unix:{}", path.display()))
            }
            Listener::Tcp(listener) => Ok(listener.local_addr()?.to_string()),
        }
    }

    /// The connections that come in; inside a runtime.
    pub(super) fn accepting(self) -> io::Result<Incoming> {
        let source = match self {
            Listener::Unix(listener) => {
                listener.set_nonblocking(true)?;
                Source::Unix(UnixListener::from_std(listener)?)
            }
            Listener::Tcp(listener) => {
                listener.set_nonblocking(true)?;
                Source::Tcp(TcpListener::from_std(listener)?)
            }
        };
        Ok(Incoming {
            source,
            pause: None,
        })
    }
}

enum Source {
    Unix(UnixListener),
    Tcp(TcpListener),
}

impl Source {
    fn poll_accept(&self, context: &mut Context<'_>) -> Poll<io::Result<Connection>> {
        Poll::Ready(match self {
            Source::Unix(listener) => {
                let accepted = ready!(listener.poll_accept(context));
                let quiet = accepted.and_then(|(stream, _)| QuietStream::new(stream.into_std()?));
                quiet.map(Connection::Unix)
            }
            Source::Tcp(listener) => ready!(listener.poll_accept(context)).map(|(stream, _)| {
                // A socket that is already dead refuses; the first read tells.
                let _ = stream.set_nodelay(true);
                Connection::Tcp(stream)
            }),
        })
    }
}

pub(super) struct Incoming {
    source: Source,
    pause: Option<Pin<Box<Sleep>>>,
}

impl Stream for Incoming {
    type Item = io::Result<Connection>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if let Some(pause) = &mut self.pause {
                ready!(pause.as_mut().poll(context));
                self.pause = None;
            }
            match ready!(self.source.poll_accept(context)) {
                Ok(connection) => return Poll::Ready(Some(Ok(connection))),
                Err(error) => {
                    log(
                        Level::Warning,
                        format!("a connection could not be accepted: {error}"),
                    );
                    self.pause = Some(Box::pin(tokio::time::sleep(PAUSE)));
                }
            }
        }
    }
}

/// An accepted connection.
pub(super) enum Connection {
    Unix(QuietStream),
    Tcp(TcpStream),
}

impl Connected for Connection {
    type ConnectInfo = ();

    fn connect_info(&self) {}
}

impl AsyncRead for Connection {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Connection::Unix(stream) => Pin::new(stream).poll_read(context, buffer),
            Connection::Tcp(stream) => Pin::new(stream).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Connection::Unix(stream) => Pin::new(stream).poll_write(context, bytes),
            Connection::Tcp(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Connection::Unix(stream) => Pin::new(stream).poll_flush(context),
            Connection::Tcp(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Connection::Unix(stream) => Pin::new(stream).poll_shutdown(context),
            Connection::Tcp(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Connection::Unix(stream) => Pin::new(stream).poll_write_vectored(context, pieces),
            Connection::Tcp(stream) => Pin::new(stream).poll_write_vectored(context, pieces),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listening_socket_is_known_by_its_family() {
        let tcp = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let at = tcp.local_addr().unwrap().to_string();
        let listener = Listener::from_fd(tcp.into()).unwrap();
        assert_eq!(listener.target().unwrap(), at);
        let path = std::env::temp_dir().join(format!("moe-wire-fd-{}", std::process::id()));
        let unix = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let listener = Listener::from_fd(unix.into()).unwrap();
        assert_eq!(
            listener.target().unwrap(),
            format!("unix:{}", path.display())
        );
        std::fs::remove_file(&path).unwrap();
    }
}
