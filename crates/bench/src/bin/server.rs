//! The server behind the command `lockkeeper serve`, as the harness measures it: started in the same way, with a store and a
//! file of tokens. It runs until it is killed.

use std::{error::Error, net::SocketAddr, path::PathBuf};

use lockkeeper_serve::{Listen, Server, Settings};
use rustix::process::{Resource, getrlimit, setrlimit};

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [store, tokens] = &words[..] else {
        return Err("usage: lockkeeper-bench-server STORE_URL TOKEN_FILE".into());
    };
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit)?;
    let mut settings = Settings::new(store);
    settings.listen = Listen::Tcp(SocketAddr::from(([127, 0, 0, 1], 0)));
    settings.token_file = Some(PathBuf::from(tokens));
    // The load comes from one token.
    settings.limits.rate = 1_000_000;
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(async {
        let server = Server::bind(settings).await?;
        println!("listening on {}", server.url());
        server.run(std::future::pending()).await;
        Ok(())
    })
}
