//! The resources that one transaction has loaded, and the model's steps on them.
//!
//! Pure: rows come in as [`Loaded`] and go out as its [changes](Loaded::changes).

use std::collections::BTreeMap;

use lockkeeper_core::{
    Capacity, Name,
    model::{Effects, HighWater, Now, Resource},
    store::GrantNotice,
};

use crate::loaded::Loaded;

/// The state of one transaction, at one moment of the store's time.
pub(crate) struct Transition {
    pub(crate) now: Now,
    pub(crate) high_water: HighWater,
    stored_high_water: HighWater,
    /// `None`: nobody holds it or waits for it.
    resources: BTreeMap<Name, Option<Loaded>>,
}

impl Transition {
    /// No resource is loaded yet.
    pub(crate) fn new(now: Now, high_water: HighWater) -> Self {
        Self { now, high_water, stored_high_water: high_water, resources: BTreeMap::new() }
    }

    /// Whether the resource was loaded, even if nobody holds it or waits for it.
    pub(crate) fn is_loaded(&self, name: &Name) -> bool {
        self.resources.contains_key(name)
    }

    /// Takes a resource in as it is stored.
    pub(crate) fn add(&mut self, name: &Name, loaded: Option<Loaded>) {
        self.resources.insert(name.clone(), loaded);
    }

    /// Makes a resource that nobody holds or waits for, unless there is one.
    pub(crate) fn add_if_free(&mut self, name: &Name, capacity: Capacity) {
        if self.resource(name).is_none() {
            self.add(name, Some(Loaded::free(capacity)));
        }
    }

    /// A loaded resource as it is now.
    pub(crate) fn resource(&self, name: &Name) -> Option<&Resource> {
        self.resources.get(name)?.as_ref().map(|loaded| &loaded.resource)
    }

    /// Does a step of the model on a loaded resource; `None` if nobody holds it or waits for it.
    pub(crate) fn step<T>(
        &mut self,
        name: &Name,
        act: impl FnOnce(&mut Resource, Now, &mut HighWater, &mut Effects) -> T,
    ) -> Option<(T, Vec<GrantNotice>)> {
        let loaded = self.resources.get_mut(name)?.as_mut()?;
        let mut effects = Effects::default();
        let answer = act(&mut loaded.resource, self.now, &mut self.high_water, &mut effects);
        loaded.changed |= effects.changed;
        Some((answer, effects.grants))
    }

    /// All resources that are or were held or waited for.
    pub(crate) fn loaded(&self) -> impl Iterator<Item = (&Name, &Loaded)> {
        self.resources.iter().filter_map(|(name, loaded)| Some((name, loaded.as_ref()?)))
    }

    /// The high-water mark, if it has to be stored.
    pub(crate) fn new_high_water(&self) -> Option<HighWater> {
        (self.high_water != self.stored_high_water).then_some(self.high_water)
    }

    /// Whether nobody was given anything: positions in queues and releases are all that may have changed.
    pub(crate) fn gives_nothing(&self) -> bool {
        self.new_high_water().is_none() && self.loaded().all(|(_, loaded)| loaded.gives_nothing())
    }
}
