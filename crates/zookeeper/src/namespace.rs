//! Creates the namespace's nodes and reads the id of the store. Touches the servers.

use lockkeeper_core::{KeeperId, StoreError};
use zookeeper_client::{Client, CreateMode, Error, MultiReadResult};

use crate::{
    layout::{FOLDERS, VERSION},
    settings::Settings,
    trouble::{corrupt, too_few_answers, trouble},
};

/// Creates the namespace where it is missing, and returns the id of the store.
pub(crate) async fn prepare(client: &Client, settings: &Settings) -> Result<String, StoreError> {
    let root = &settings.paths.root;
    let options = CreateMode::Persistent.with_acls(settings.acls());
    let make = async |path: &str, data: &[u8]| -> Result<(), StoreError> {
        if client.check_stat(path).await.map_err(trouble)?.is_some() {
            return Ok(());
        }
        match client.create(path, data, &options).await {
            Ok(_) | Err(Error::NodeExists) => Ok(()),
            Err(error) => Err(trouble(error)),
        }
    };
    for (end, _) in root.match_indices('/').skip(1) {
        make(&root[..end], b"").await?;
    }
    make(root, format!("lockkeeper {VERSION} {}", KeeperId::random()).as_bytes()).await?;
    let id = id(root, &read(client, root).await?)?;
    for folder in FOLDERS {
        make(&settings.paths.folder(folder), b"").await?;
    }
    Ok(id)
}

/// The id of the store, from the data of the namespace's root.
fn id(root: &str, data: &[u8]) -> Result<String, StoreError> {
    let text = String::from_utf8_lossy(data);
    let mut words = text.split(' ');
    let head = (words.next(), words.next().and_then(|version| version.parse::<u32>().ok()), words.next());
    let (Some("lockkeeper"), Some(version), Some(id)) = head else {
        return Err(corrupt(format!("{root} belongs to something else; choose another namespace")));
    };
    if version > VERSION {
        return Err(corrupt(format!(
            "{root} has layout {version}, and this program knows {VERSION}; update it or choose another namespace"
        )));
    }
    Ok(format!("zookeeper-{id}"))
}

/// Reads a node in the way in which renewals do. Servers before 3.6 do not support it, so the keeper learns that when it
/// connects.
async fn read(client: &Client, path: &str) -> Result<Vec<u8>, StoreError> {
    let mut reader = client.new_multi_reader();
    reader.add_get_data(path).map_err(trouble)?;
    match reader.commit().await.map_err(trouble)?.pop() {
        Some(MultiReadResult::Data { data, .. }) => Ok(data),
        Some(MultiReadResult::Error { err }) => Err(trouble(err)),
        _ => Err(too_few_answers()),
    }
}
