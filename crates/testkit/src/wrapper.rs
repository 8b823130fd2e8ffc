//! For wrapper stores, which change requests and answers but not the store's identity.

/// The methods of [`Store`](lockkeeper_core::store::Store) that ask nothing: those of `self.inner`. A wrapper with a
/// capability of its own writes `same_store!(but capability, server_of)`.
macro_rules! same_store {
    () => {
        fn capability(&self) -> &lockkeeper_core::Capability {
            self.inner.capability()
        }

        fn server_of(&self, name: &lockkeeper_core::Name) -> usize {
            self.inner.server_of(name)
        }

        $crate::wrapper::same_store!(but capability, server_of);
    };
    (but capability, server_of) => {
        fn url(&self) -> &std::sync::Arc<str> {
            self.inner.url()
        }

        fn id(&self) -> &str {
            self.inner.id()
        }

        fn shorter_leases(&self) -> Option<&str> {
            self.inner.shorter_leases()
        }

        #[cfg(unix)]
        fn life_line(&self) -> Option<std::os::fd::OwnedFd> {
            self.inner.life_line()
        }

        fn member(&self) -> Option<&dyn lockkeeper_core::store::Member> {
            self.inner.member()
        }

        fn leave_caller(&self) {
            self.inner.leave_caller();
        }

        fn still_leaves(&self) -> bool {
            self.inner.still_leaves()
        }

        fn close(&self) -> lockkeeper_core::store::BoxFuture<'_, ()> {
            self.inner.close()
        }
    };
}
pub(crate) use same_store;
