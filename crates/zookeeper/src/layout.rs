//! The nodes under the namespace, and the version of the layout. Pure.
//!
//! ```text
//! <chroot>/<namespace>               "lockkeeper 1 <id of the store>"
//! <chroot>/<namespace>/locks/NAME    one per resource in use, with a node per claim; the servers remove it when empty
//! <chroot>/<namespace>/latches/NAME  a latch's counter
//! <chroot>/<namespace>/counted/OP    the answer to a latch operation, until its keeper has read it
//! <chroot>/<namespace>/fences/NAME   the highest floor that a fence has seen
//! ```

use lockkeeper_core::{ContenderId, Name};

use crate::codec;

/// The version of the layout.
pub(crate) const VERSION: u32 = 1;

/// The folders under the root.
pub(crate) const FOLDERS: [&str; 4] = ["locks", "latches", "counted", "fences"];

/// The paths of one namespace.
#[derive(Clone, Debug)]
pub(crate) struct Paths {
    pub(crate) root: String,
}

impl Paths {
    pub(crate) fn folder(&self, folder: &str) -> String {
        format!("{}/{folder}", self.root)
    }

    pub(crate) fn locks(&self) -> String {
        self.folder("locks")
    }

    /// The folder of a resource: the parent of its claims' nodes.
    pub(crate) fn lock(&self, name: &Name) -> String {
        format!("{}/locks/{}", self.root, codec::encode(name.as_str()))
    }

    pub(crate) fn latches(&self) -> String {
        self.folder("latches")
    }

    pub(crate) fn latch(&self, name: &Name) -> String {
        format!("{}/latches/{}", self.root, codec::encode(name.as_str()))
    }

    pub(crate) fn all_counted(&self) -> String {
        self.folder("counted")
    }

    pub(crate) fn counted(&self, op: ContenderId) -> String {
        format!("{}/counted/{op}", self.root)
    }

    pub(crate) fn fence(&self, name: &Name) -> String {
        format!("{}/fences/{}", self.root, codec::encode(name.as_str()))
    }
}

/// The folder and the name of a node.
pub(crate) fn split(path: &str) -> (&str, &str) {
    path.rsplit_once('/').unwrap_or_default()
}
