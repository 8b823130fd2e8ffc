//! ZooKeeper, as the package `zookeeper` of Debian has it (3.8): one server, or an ensemble of three.

use std::{
    fs,
    io::{self, Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    path::{Path, PathBuf},
    time::Duration,
};

use tempfile::TempDir;

use super::{Answer, Certificates, Process, missing, program, user::write_private};
use crate::port::Port;

/// The last two are for TLS.
const JARS: [&str; 5] =
    ["zookeeper.jar", "slf4j-log4j12.jar", "log4j-1.2.jar", "netty-codec.jar", "netty-resolver.jar"];

/// Short ticks, so that sessions may be short; no server on port 8080; any number of connections.
const SETTINGS: &str = "\
tickTime=200
initLimit=50
syncLimit=20
maxClientCnxns=0
admin.enableServer=false
4lw.commands.whitelist=*
minSessionTimeout=400
maxSessionTimeout=60000
clientPortAddress=127.0.0.1
";

const LOGGING: &str = "\
log4j.rootLogger=INFO,S
log4j.appender.S=org.apache.log4j.ConsoleAppender
log4j.appender.S.layout=org.apache.log4j.PatternLayout
log4j.appender.S.layout.ConversionPattern=%d{ISO8601} %p %c{1} %m%n
";

/// The setup of ZooKeeper servers. The default has no login and no TLS.
#[derive(Clone, Debug, Default)]
pub struct ZooKeeperOptions {
    tls: bool,
    sasl: Option<(String, String)>,
    containers: Option<Duration>,
}

impl ZooKeeperOptions {
    /// It also listens with TLS, and asks clients there for a certificate of the same authority:
    /// [`ZooKeeper::tls_url`].
    #[must_use]
    pub fn tls(mut self) -> Self {
        self.tls = true;
        self
    }

    /// Only clients that show this password with DIGEST-MD5 get a session.
    #[must_use]
    pub fn sasl(mut self, user: &str, password: &str) -> Self {
        self.sasl = Some((user.to_owned(), password.to_owned()));
        self
    }

    /// How often it looks for containers that have become empty, instead of once a minute.
    #[must_use]
    pub fn check_containers(mut self, every: Duration) -> Self {
        self.containers = Some(every);
        self
    }

    /// One server alone.
    ///
    /// # Errors
    /// If a program is missing or it does not start.
    pub fn start(&self) -> io::Result<ZooKeeper> {
        ZooKeeper::start_many(1, self)
    }
}

/// Servers that are one store together.
#[derive(Debug)]
pub struct ZooKeeper {
    nodes: Vec<ZooKeeperNode>,
}

/// One server.
#[derive(Debug)]
pub struct ZooKeeperNode {
    process: Process,
    port: Port,
    number: usize,
    /// On which the servers of an ensemble talk: for data, and to elect.
    peers: [Port; 2],
    secure: Option<(Port, Certificates)>,
    /// Last, so that the process is gone when it is removed.
    folder: TempDir,
}

impl ZooKeeper {
    /// One server alone.
    ///
    /// # Errors
    /// If a program is missing or it does not start.
    pub fn start() -> io::Result<Self> {
        Self::start_many(1, &ZooKeeperOptions::default())
    }

    /// Three servers, of which two must live.
    ///
    /// # Errors
    /// If a program is missing or they do not find each other.
    pub fn ensemble() -> io::Result<Self> {
        Self::start_many(3, &ZooKeeperOptions::default())
    }

    fn start_many(count: usize, options: &ZooKeeperOptions) -> io::Result<Self> {
        let nodes = (1..=count).map(|number| ZooKeeperNode::new(number, options));
        let nodes: Vec<_> = nodes.collect::<io::Result<_>>()?;
        let mut members = String::new();
        if count > 1 {
            members.push_str("standaloneEnabled=false\n");
            for ZooKeeperNode { number, peers: [data, vote], .. } in &nodes {
                let (data, vote) = (data.number(), vote.number());
                members.push_str(&format!("server.{number}=127.0.0.1:{data}:{vote}\n"));
            }
        }
        for node in &nodes {
            node.write_files(&members, options)?;
        }
        let all = Self { nodes };
        for node in &all.nodes {
            // All at once: one of an ensemble is ready only when another is.
            node.start_again()?;
        }
        for node in &all.nodes {
            node.until_ready()?;
        }
        Ok(all)
    }

    /// The lockkeeper URL.
    pub fn url(&self) -> String {
        let nodes: Vec<_> = self.nodes.iter().map(|node| node.address().to_string()).collect();
        format!("zookeeper://{}", nodes.join(","))
    }

    /// The lockkeeper URL for TLS, with a client's certificate.
    ///
    /// # Panics
    /// If the servers were not started with [`ZooKeeperOptions::tls`].
    pub fn tls_url(&self) -> String {
        let secure = self.nodes.iter().map(|node| node.secure.as_ref().expect("started with TLS"));
        let addresses: Vec<_> = secure.clone().map(|(port, _)| port.address().to_string()).collect();
        let certificates = self.certificates();
        let (cert, key) = certificates.client();
        let [ca, cert, key] = [certificates.authority(), cert, key].map(|file| file.display().to_string());
        format!("zookeeper://{}?tls=true&ca={ca}&cert={cert}&key={key}", addresses.join(","))
    }

    /// The certificates of the first server.
    ///
    /// # Panics
    /// If it was not started with [`ZooKeeperOptions::tls`].
    pub fn certificates(&self) -> &Certificates {
        &self.nodes[0].secure.as_ref().expect("started with TLS").1
    }

    /// The servers.
    pub fn nodes(&self) -> &[ZooKeeperNode] {
        &self.nodes
    }

    /// The server that leads now.
    ///
    /// # Errors
    /// If none does.
    pub fn leader(&self) -> io::Result<&ZooKeeperNode> {
        let leads = |node: &&ZooKeeperNode| {
            node.mode().is_some_and(|mode| ["leader", "standalone"].contains(&mode.as_str()))
        };
        self.nodes.iter().find(leads).ok_or_else(|| io::Error::other("nobody leads"))
    }
}

impl ZooKeeperNode {
    fn new(number: usize, options: &ZooKeeperOptions) -> io::Result<Self> {
        let java = program("java", "default-jre-headless")?;
        let jars = JARS.map(|jar| format!("/usr/share/java/{jar}"));
        if let Some(jar) = jars.iter().find(|jar| !Path::new(jar).is_file()) {
            return Err(missing(jar, "zookeeper"));
        }
        let folder = tempfile::Builder::new().prefix("lockkeeper-zookeeper-").tempdir()?;
        let port = Port::free()?;
        let file = |name: &str| folder.path().join(name).display().to_string();
        let name = format!("zookeeper on port {}", port.number());
        let secure = options.tls.then(|| io::Result::Ok((Port::free()?, Certificates::make(folder.path())?)));
        let secure = secure.transpose()?;
        let every = options.containers.unwrap_or(Duration::from_secs(60));
        let process = Process::new(name, &java, folder.path().join("log"))
            // A small server that starts quickly.
            .arguments(["-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"])
            // Written data survives a kill, and nothing worse is done to it; a disk that stands still would end
            // sessions.
            .arguments(["-Dzookeeper.forceSync=no"])
            .arguments([format!("-Dlog4j.configuration=file:{}", file("log4j.properties"))])
            .arguments(
                options.sasl.iter().map(|_| format!("-Djava.security.auth.login.config={}", file("logins"))),
            )
            .arguments([format!("-Dznode.container.checkIntervalMs={}", every.as_millis())])
            .arguments(["-cp", &jars.join(":"), "org.apache.zookeeper.server.quorum.QuorumPeerMain"])
            .arguments([file("zoo.cfg")]);
        Ok(Self { process, port, number, peers: [Port::free()?, Port::free()?], secure, folder })
    }

    fn write_files(&self, members: &str, options: &ZooKeeperOptions) -> io::Result<()> {
        let folder = self.folder.path();
        let data = folder.join("data");
        let own = format!("dataDir={}\nclientPort={}\n", data.display(), self.port.number());
        let mut special = String::new();
        if let Some((port, certificates)) = &self.secure {
            // One file with both, and an ending that it knows.
            let (certificate, key) = certificates.server();
            let (both, authority) = (folder.join("server.pem"), certificates.authority());
            write_private(&both, &(fs::read_to_string(key)? + &fs::read_to_string(certificate)?))?;
            special.push_str(&format!(
                "serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory\n\
                 secureClientPortAddress=127.0.0.1\nsecureClientPort={}\nssl.clientAuth=need\n\
                 ssl.keyStore.type=PEM\nssl.keyStore.location={}\n\
                 ssl.trustStore.type=PEM\nssl.trustStore.location={}\n",
                port.number(),
                both.display(),
                authority.display(),
            ));
        }
        let mut logins = String::new();
        if let Some((user, password)) = &options.sasl {
            special.push_str(
                "authProvider.1=org.apache.zookeeper.server.auth.SASLAuthenticationProvider\n\
                 sessionRequireClientSASLAuth=true\n",
            );
            let module = "org.apache.zookeeper.server.auth.DigestLoginModule";
            logins = format!("Server {{ {module} required user_{user}=\"{password}\"; }};\n");
        }
        write_private(&folder.join("logins"), &logins)?;
        fs::write(folder.join("zoo.cfg"), format!("{SETTINGS}{own}{special}{members}"))?;
        fs::write(folder.join("log4j.properties"), LOGGING)?;
        self.make_data()
    }

    fn make_data(&self) -> io::Result<()> {
        let data = self.folder.path().join("data");
        fs::create_dir(&data)?;
        fs::write(data.join("myid"), self.number.to_string())
    }

    /// The address that it listens on for clients.
    pub fn address(&self) -> SocketAddr {
        self.port.address()
    }

    /// The folder with all it has written.
    pub fn data(&self) -> PathBuf {
        self.folder.path().join("data/version-2")
    }

    /// Its process: to stop it, to let it go on, to kill it.
    pub fn process(&self) -> &Process {
        &self.process
    }

    /// Sends one of the commands of four letters, such as `srvr`, and gives the answer.
    ///
    /// # Errors
    /// If it does not answer.
    pub fn ask(&self, word: &str) -> io::Result<String> {
        let mut line = TcpStream::connect(self.address())?;
        line.set_read_timeout(Some(Duration::from_secs(2)))?;
        line.write_all(word.as_bytes())?;
        let mut answer = String::new();
        line.read_to_string(&mut answer)?;
        Ok(answer)
    }

    /// Its role now: `standalone`, `leader` or `follower`; `None` if it does not serve.
    pub fn mode(&self) -> Option<String> {
        let answer = self.ask("srvr").ok()?;
        answer.lines().find_map(|line| line.strip_prefix("Mode: ")).map(str::to_owned)
    }

    /// Waits until it serves requests. (It says to be well before that.)
    ///
    /// # Errors
    /// If it never does.
    pub fn until_ready(&self) -> io::Result<()> {
        // The port for TLS is opened last.
        let secure =
            || self.secure.as_ref().is_none_or(|(port, _)| TcpStream::connect(port.address()).is_ok());
        self.process.until_ready(|| Ok(Answer::when(self.mode().is_some() && secure(), "no mode or port")))
    }

    /// Changes a setting, from its next start on.
    ///
    /// # Errors
    /// If its settings cannot be written.
    pub fn configure(&self, setting: &str, value: &str) -> io::Result<()> {
        let file = self.folder.path().join("zoo.cfg");
        // Of two that say something else, the later counts.
        fs::write(&file, format!("{}{setting}={value}\n", fs::read_to_string(&file)?))
    }

    /// Starts it again after [`Process::kill`], with the data that it had written. Of an ensemble, it serves only once
    /// enough others run: [`until_ready`](Self::until_ready).
    ///
    /// # Errors
    /// If it does not start.
    pub fn start_again(&self) -> io::Result<()> {
        self.process.start()
    }

    /// Kills it and starts it again.
    ///
    /// # Errors
    /// If it does not start.
    pub fn restart(&self) -> io::Result<()> {
        self.process.kill();
        self.start_again()
    }

    /// Kills it and starts it again with no data at all.
    ///
    /// # Errors
    /// If its folder cannot be emptied or it does not start.
    pub fn restart_empty(&self) -> io::Result<()> {
        self.process.kill();
        fs::remove_dir_all(self.folder.path().join("data"))?;
        self.make_data()?;
        self.start_again()
    }
}
