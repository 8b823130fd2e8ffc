//! Fences: one persistent node each, with the highest floor seen.

use lockkeeper_core::{
    StoreError, Token,
    store::{Admit, Admitted},
};
use zookeeper_client::Error;

use crate::{
    keeper::KeeperState,
    session::Session,
    trouble::{check_failed, corrupt, trouble},
};

impl KeeperState {
    /// Shows a token to a fence.
    pub(crate) async fn fence(&self, session: &Session, admit: &Admit) -> Result<Admitted, StoreError> {
        let path = self.settings.paths.fence(&admit.name);
        loop {
            let written = match self.read_fence(session, &path).await? {
                // A fence never falls, so `Stale` stays true even if this read was old.
                Some((highest, _)) if admit.token < highest => return Ok(Admitted::Stale { highest }),
                fence => self.raise_fence(session, &path, fence, admit.floor).await,
            };
            match written {
                Ok(()) => return Ok(Admitted::Yes),
                Err(Error::BadVersion | Error::NodeExists | Error::NoNode) => {}
                Err(error) => return Err(trouble(error)),
            }
        }
    }

    /// The highest floor of a fence, and the version of its node.
    async fn read_fence(&self, session: &Session, path: &str) -> Result<Option<(Token, i32)>, StoreError> {
        let Some((data, stat)) = session.data(path).await? else { return Ok(None) };
        let highest = std::str::from_utf8(&data).ok().and_then(|text| text.parse::<Token>().ok());
        let highest = highest.ok_or_else(|| corrupt(format!("{path} holds no fence of Lockkeeper")))?;
        Ok(Some((highest, stat.version)))
    }

    /// Raises a fence to `floor`, from the version that was read.
    async fn raise_fence(
        &self,
        session: &Session,
        path: &str,
        fence: Option<(Token, i32)>,
        floor: Token,
    ) -> Result<(), Error> {
        let sent = session.now();
        let text = floor.to_string();
        match fence {
            Some((highest, version)) if floor <= highest => {
                // There is nothing to write, but the quorum has to confirm that nothing higher was written.
                let check = session.client.new_check_writer(path, Some(version))?;
                session.write(sent, check.commit()).await.map(drop).map_err(check_failed)
            }
            Some((_, version)) => {
                let set = session.client.set_data(path, text.as_bytes(), Some(version));
                session.write(sent, set).await.map(drop)
            }
            None => {
                let options = self.persistent();
                let made = session.client.create(path, text.as_bytes(), &options);
                session.write(sent, made).await.map(drop)
            }
        }
    }
}
