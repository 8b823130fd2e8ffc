//! A throw-away certificate authority with one certificate for servers on the loopback interface and one for
//! clients, made by the `openssl` program.

use std::{
    fs, io,
    path::{Path, PathBuf},
    process::Command,
};

use super::program;

/// Files in PEM format; they live as long as the folder they are in.
#[derive(Clone, Debug)]
pub struct Certificates {
    folder: PathBuf,
}

impl Certificates {
    /// Makes new ones in this folder.
    ///
    /// # Errors
    /// If openssl is missing or fails.
    pub(super) fn make(folder: &Path) -> io::Result<Self> {
        let made = Self { folder: folder.to_owned() };
        let key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"];
        let authority = ["-x509", "-days", "2", "-subj", "/CN=tests of lockkeeper", "-keyout", "ca.key"];
        made.openssl("req", key.iter().chain(&authority).chain(&["-out", "ca.crt"]))?;
        for (who, names) in [("server", "IP:127.0.0.1,DNS:localhost"), ("client", "DNS:client")] {
            let file = |ending: &str| format!("{who}.{ending}");
            let (request, extensions, out) = (file("csr"), file("ext"), file("crt"));
            let (subject, key_file) = (format!("/CN={who}"), file("key"));
            let ask = ["-subj", &subject, "-keyout", &key_file, "-out", &request];
            made.openssl("req", key.iter().chain(&ask))?;
            fs::write(folder.join(&extensions), format!("subjectAltName={names}\n"))?;
            let sign = ["-req", "-days", "2", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial"];
            let files = ["-in", &request, "-extfile", &extensions, "-out", &out];
            made.openssl("x509", sign.iter().chain(&files))?;
        }
        Ok(made)
    }

    /// Copies them to another folder.
    ///
    /// # Errors
    /// If they cannot be copied.
    pub(super) fn copy(&self, folder: &Path) -> io::Result<Self> {
        let copied = Self { folder: folder.to_owned() };
        let pairs = |made: &Self| {
            [made.server(), made.client()].map(|(certificate, key)| [certificate, key]).concat()
        };
        let files = pairs(self).into_iter().zip(pairs(&copied));
        for (from, to) in files.chain([(self.authority(), copied.authority())]) {
            fs::copy(from, to)?;
        }
        Ok(copied)
    }

    fn openssl<'a>(&self, command: &str, words: impl Iterator<Item = &'a &'a str>) -> io::Result<()> {
        let openssl = program("openssl", "openssl")?;
        let done = Command::new(openssl).arg(command).args(words).current_dir(&self.folder).output()?;
        if done.status.success() {
            return Ok(());
        }
        let why = String::from_utf8_lossy(&done.stderr);
        Err(io::Error::other(format!("openssl {command}: {}: {}", done.status, why.trim())))
    }

    /// The authority's certificate.
    pub fn authority(&self) -> PathBuf {
        self.folder.join("ca.crt")
    }

    /// The certificate and key of the server.
    pub fn server(&self) -> (PathBuf, PathBuf) {
        (self.folder.join("server.crt"), self.folder.join("server.key"))
    }

    /// The certificate and key of a client.
    pub fn client(&self) -> (PathBuf, PathBuf) {
        (self.folder.join("client.crt"), self.folder.join("client.key"))
    }
}
