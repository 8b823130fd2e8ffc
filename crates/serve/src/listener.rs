//! The way in for clients: a port, or a socket in the file system that only its owner may use.

use std::{
    fs, io,
    net::IpAddr,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
    time::Duration,
};

use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

use crate::{error::ServeError, settings::Listen};

/// A client that is gone without a word is noticed after 15 s + 3 × 5 s.
const SILENCE: Duration = Duration::from_secs(15);
const PROBES: (Duration, u32) = (Duration::from_secs(5), 3);

pub(crate) enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener, SocketFile),
}

pub(crate) enum Accepted {
    Tcp(TcpStream, IpAddr),
    Unix(UnixStream),
}

/// The file of a socket, removed at the end.
pub(crate) struct SocketFile {
    path: PathBuf,
    inode: u64,
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        // A server that was started meanwhile has replaced it. Somebody else may have removed it.
        if fs::symlink_metadata(&self.path).is_ok_and(|found| found.ino() == self.inode) {
            drop(fs::remove_file(&self.path));
        }
    }
}

impl Listener {
    pub(crate) async fn bind(listen: &Listen) -> Result<Self, ServeError> {
        let failed = |error: io::Error| {
            ServeError::internal(format!("cannot listen on {listen}: {error}; choose another with --listen"))
        };
        match listen {
            Listen::Tcp(address) => TcpListener::bind(address).await.map(Self::Tcp).map_err(failed),
            Listen::Unix(path) => bind_unix(path).await.map_err(failed),
        }
    }

    /// Returns the address that it really listens on: port 0 becomes a free one.
    pub(crate) fn listens(&self) -> io::Result<Listen> {
        match self {
            Self::Tcp(listener) => listener.local_addr().map(Listen::Tcp),
            Self::Unix(_, file) => Ok(Listen::Unix(file.path.clone())),
        }
    }

    pub(crate) async fn accept(&self) -> io::Result<Accepted> {
        match self {
            Self::Tcp(listener) => {
                let (stream, address) = listener.accept().await?;
                // A failure of these options costs speed at most.
                let _ = stream.set_nodelay(true);
                let keepalive =
                    TcpKeepalive::new().with_time(SILENCE).with_interval(PROBES.0).with_retries(PROBES.1);
                let _ = SockRef::from(&stream).set_tcp_keepalive(&keepalive);
                Ok(Accepted::Tcp(stream, address.ip().to_canonical()))
            }
            Self::Unix(listener, _) => listener.accept().await.map(|(stream, _)| Accepted::Unix(stream)),
        }
    }
}

async fn bind_unix(path: &Path) -> io::Result<Listener> {
    if path.exists() {
        // A server that was killed leaves its file behind. One that lives answers.
        if UnixStream::connect(path).await.is_ok() {
            return Err(io::Error::new(io::ErrorKind::AddrInUse, "another process listens there"));
        }
        use std::os::unix::fs::FileTypeExt;
        if !fs::symlink_metadata(path)?.file_type().is_socket() {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, "there is a file that is no socket"));
        }
    }
    // The socket gets its name only when nobody but its owner may use it, so nobody else ever could.
    let mut hidden = path.as_os_str().to_owned();
    hidden.push(format!(".{}", std::process::id()));
    let mut file = SocketFile { path: hidden.into(), inode: 0 };
    let listener = UnixListener::bind(&file.path)?;
    file.inode = fs::symlink_metadata(&file.path)?.ino();
    fs::set_permissions(&file.path, fs::Permissions::from_mode(0o600))?;
    fs::rename(&file.path, path)?;
    path.clone_into(&mut file.path);
    Ok(Listener::Unix(listener, file))
}
