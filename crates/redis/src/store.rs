//! The store: every request becomes calls of scripts, which go out together.

use std::{
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};

use lockkeeper_core::{
    Capability, KeeperId, Name, StoreError, StoreErrorKind, Survives,
    model::{COUNT_MEMORY, WAIT_LEASE},
    store::{
        Admit, Admitted, Answer, Answers, BoxFuture, Connector, Context, Count, CountAction, Counted, Evict,
        Evicted, Eviction, Leave, ListQuery, Page, Renew, Renewed, Reply, Request, ResourceView, Store,
        StoreTime, Topic, Verdict, Wake, Watch,
    },
};
use redis::{Cmd, Value};
use tokio::task::AbortHandle;

use crate::{
    check,
    codec::{self, Reader},
    connect::Opener,
    layout::{Keys, slot},
    scripts::{APPLY, CHANGES, COUNT, Call, EVICT, FENCE, INSPECT, RENEW, Script},
    servers::{Answered, Priority, Server, Servers},
    settings::Settings,
    trouble,
    wakes::{Listeners, Subscription},
};

/// What the Redis store can do.
pub static CAPABILITY: Capability = {
    let mut can = Capability::new("redis");
    can.between_processes = true;
    can.pushes = true;
    can.min_lease = Duration::from_millis(100);
    can.max_lease = Duration::from_secs(366 * 24 * 3600);
    can.detachable = true;
    can.group_limit = 256;
    can.requests_at_once = 3;
    can.client_crash = Survives::Fully;
    can.restart = Survives::WithFence;
    can.data_loss = Survives::WithFence;
    can.clock_jump = Survives::WithFence;
    can
};

/// The version of the key layout. Others are refused.
const LAYOUT: u32 = 2;
/// How long a latch that nobody touches lasts.
const LATCH_LIFE: Duration = Duration::from_secs(30 * 24 * 3600);
/// How long scripts tell of changes after somebody last asked for it, and how often a watcher does.
const WATCHED_FOR: Duration = Duration::from_secs(60);
const WATCH_AGAIN: Duration = Duration::from_secs(10);
/// How long subscribing is waited for: it is only a hint that may then come late.
const SUBSCRIBING: Duration = Duration::from_millis(500);

/// One keeper's connections to a store.
pub(crate) struct RedisStore {
    url: Arc<str>,
    id: String,
    keeper: KeeperId,
    keys: Keys,
    servers: Arc<Servers>,
    listeners: Arc<Listeners>,
    /// The keeper's own channel.
    _grants: Option<Subscription>,
    /// Turns to the new master when there is one.
    _follower: Option<Background>,
    background: tokio::runtime::Handle,
}

pub(crate) fn connector(settings: Settings) -> Connector {
    Connector::new(move |context| async move {
        Ok(Arc::new(RedisStore::connect(settings, context).await?) as Arc<dyn Store>)
    })
}

impl RedisStore {
    async fn connect(settings: Settings, context: Context) -> Result<Self, StoreError> {
        // Within the engine's own limit, so that it is here that a silent connection is given up.
        let limit = context.request_limit.mul_f32(0.9);
        let limit = settings.request_limit.map_or(limit, |own| own.min(limit));
        let (url, strict) = (settings.shown.clone(), settings.strict);
        let opener = Arc::new(Opener::new(settings)?);
        let servers = Servers::find(opener, context.background.clone(), limit).await?;
        let keys = Keys::new(&servers.opener.settings().namespace, servers.is_cluster());
        let id = identify(&servers, &keys).await?;
        let listeners = Listeners::new(&servers, &keys, &context);
        let mut grants = None;
        let follower = follow(&servers, &context);
        if !keys.is_sharded() {
            // In a cluster, messages stay with the slot of their resource, so each has a channel of its own.
            grants = Some(listeners.listen(keys.grants(context.keeper), SUBSCRIBING).await);
        }
        if strict {
            check::refuse(&check::look(&servers).await?)?;
        } else {
            let servers = servers.clone();
            context.background.spawn(async move { check::warn(check::look(&servers).await) });
        }
        let (keeper, background) = (context.keeper, context.background);
        Ok(Self {
            url,
            id,
            keeper,
            keys,
            servers,
            listeners,
            _grants: grants,
            _follower: follower,
            background,
        })
    }

    /// The calls for a group: one for all of it, or in a cluster one for each entry, as a script works in one slot.
    fn calls<'a, T: Sync>(
        &'a self,
        script: &'static Script,
        group: &'a [&'a T],
        name: fn(&T) -> &Name,
        push: impl Fn(&mut Cmd, &[&T]) + Copy + Send + Sync + 'a,
    ) -> Vec<Call<'a>> {
        let size = if self.keys.is_sharded() { 1 } else { group.len().max(1) };
        let chunk = |chunk: &'a [&'a T]| {
            Call::new(script, &self.keys, name(chunk[0]), 1 + chunk.len(), move |command, nonce| {
                command.arg(self.keys.mark(name(chunk[0])));
                for entry in chunk {
                    command.arg(self.keys.resource(name(entry)));
                }
                command.arg(nonce);
                push(command, chunk);
            })
        };
        group.chunks(size).map(chunk).collect()
    }

    fn apply_calls<'a>(&'a self, group: &'a [&'a Request]) -> Vec<Call<'a>> {
        let must_write = self.servers.opener.settings().wait > 0;
        let push = move |command: &mut Cmd, group: &[&Request]| codec::push_group(command, group, must_write);
        self.calls(&APPLY, group, Request::name, push)
    }

    /// Answers a group. Its plain leaves go first, as the script has it.
    async fn apply_group(&self, group: &[Request]) -> Result<Answers<Answer>, StoreError> {
        if let [only] = group {
            return self.apply_sorted(&[only]).await;
        }
        // A leave with a mark before it, of the same resource, may have granted what this one gives back.
        let mut marked: Vec<&Name> = Vec::new();
        let twice = codec::twice(group.iter());
        let (mut order, rest): (Vec<usize>, Vec<usize>) = (0..group.len()).partition(|place| {
            let request = &group[*place];
            let plain = codec::is_plain_leave(request, &twice);
            if !plain && matches!(request, Request::Leave(_)) {
                marked.push(request.name());
            }
            plain && !marked.contains(&request.name())
        });
        order.extend(rest);
        let sorted: Vec<&Request> = order.iter().map(|place| &group[*place]).collect();
        let Answers { now, each } = self.apply_sorted(&sorted).await?;
        let mut placed: Vec<(usize, Answer)> = order.into_iter().zip(each).collect();
        placed.sort_unstable_by_key(|(place, _)| *place);
        Ok(Answers { now, each: placed.into_iter().map(|(_, answer)| answer).collect() })
    }

    async fn apply_sorted(&self, group: &[&Request]) -> Result<Answers<Answer>, StoreError> {
        if group.is_empty() {
            return Ok(Answers { now: self.time().await?, each: Vec::new() });
        }
        for request in group {
            if let Request::Leave(leave) = request {
                self.servers.end_watch(leave.contender);
            }
        }
        let calls = self.apply_calls(group);
        let answered = self.servers.run(Priority::Normal, &calls).await;
        if group.iter().any(|request| matches!(request, Request::Claim(claim) if claim.again)) {
            self.listeners.check_runtime();
        }
        let mut all = Vec::with_capacity(group.len());
        let (mut now, mut failed) = (StoreTime(0), None);
        let mut places = Vec::new();
        for (chunk, answered) in group.chunks(group.len().div_ceil(calls.len())).zip(answered) {
            match answered.and_then(|answered| read_answers(chunk, answered)) {
                Ok((at, mut answers, place)) => {
                    now = at;
                    if answers.iter().any(|answer| matches!(answer, Answer::Claim(Verdict::Granted(_)))) {
                        places.push((all.len()..all.len() + answers.len(), place));
                    }
                    all.append(&mut answers);
                }
                // In a cluster each entry has its own call, and the refusal of one is a value. What passes is no refusal:
                // who waits asks again.
                Err(error) => {
                    let refused = !error.maybe_applied() && !error.is_passing() && calls.len() > 1;
                    for request in chunk {
                        match request {
                            Request::Claim(_) if refused => {
                                all.push(Answer::Claim(Verdict::Refused(error.clone())));
                            }
                            _ => failed = Some(error.clone()),
                        }
                    }
                }
            }
        }
        if let Some(error) = failed {
            return Err(if calls.len() > 1 { error.perhaps_applied() } else { error });
        }
        if now == StoreTime(0) {
            now = self.time().await?;
        }
        self.replicate(group, &mut all, places).await?;
        for (request, answer) in group.iter().zip(&all) {
            if let (Request::Claim(claim), Answer::Claim(verdict)) = (request, answer) {
                match verdict {
                    Verdict::Granted(grant) => self.servers.keep_watch(claim.contender, grant.remaining),
                    Verdict::Busy { .. } if claim.queue => {
                        self.servers.keep_watch(claim.contender, WAIT_LEASE);
                    }
                    _ => self.servers.end_watch(claim.contender),
                }
            }
        }
        Ok(Answers { now, each: all })
    }

    /// With `wait=n`: what was granted counts only if enough replicas have it; else it is given back.
    async fn replicate(
        &self,
        group: &[&Request],
        answers: &mut [Answer],
        places: Vec<(std::ops::Range<usize>, Source)>,
    ) -> Result<(), StoreError> {
        let settings = self.servers.opener.settings();
        if settings.wait == 0 {
            return Ok(());
        }
        let mut lacking = Vec::new();
        let patience = self.patience();
        // In a cluster each grant has its own call, and they share connections.
        let mut asked: Vec<(Source, i64)> = Vec::new();
        for (entries, place) in places {
            let have = self.replicas(Priority::Normal, place, &mut asked).await?;
            if have >= i64::from(settings.wait) {
                continue;
            }
            let message = format!(
                "the grant reached {have} of {} replicas within {patience:?} and was given back; see to the replicas, or \
                 lower wait=",
                settings.wait
            );
            for entry in entries {
                if matches!(answers[entry], Answer::Claim(Verdict::Granted(_)))
                    && let Request::Claim(claim) = group[entry]
                {
                    let (name, contender) = (claim.name.clone(), claim.contender);
                    let tombstone_until = Some(claim.not_after);
                    lacking.push(Request::Leave(Leave {
                        name,
                        contender,
                        tombstone_until,
                        hold_at_least: Duration::ZERO,
                    }));
                    let error = StoreError::new(StoreErrorKind::Conflict, message.as_str());
                    answers[entry] = Answer::Claim(Verdict::Refused(error));
                }
            }
        }
        // If this fails too, the keeper cleans up, as after every claim whose outcome is not known.
        let lacking: Vec<&Request> = lacking.iter().collect();
        for result in self.servers.run(Priority::Normal, &self.apply_calls(&lacking)).await {
            result.map_err(StoreError::perhaps_applied)?;
        }
        Ok(())
    }

    /// How long replicas are waited for.
    fn patience(&self) -> Duration {
        self.servers.opener.settings().wait_limit.min(self.servers.limit / 2)
    }

    /// How many replicas have what was written on a connection; asked once for each.
    async fn replicas(
        &self,
        priority: Priority,
        place: Source,
        asked: &mut Vec<(Source, i64)>,
    ) -> Result<i64, StoreError> {
        let same = |(of, _): &&(Source, i64)| Arc::ptr_eq(&of.0, &place.0) && of.1 == place.1;
        if let Some((_, have)) = asked.iter().find(same) {
            return Ok(*have);
        }
        let (wanted, patience) = (self.servers.opener.settings().wait, self.patience());
        let until = Instant::now() + patience + self.servers.limit / 2;
        let have = place.0.connection(priority).replicas(place.1, wanted, patience, until).await?;
        asked.push((place, have));
        Ok(have)
    }

    /// With `wait=n`: what was renewed counts only if enough replicas know it. Nobody knows otherwise whether the server
    /// that renewed it is still the master.
    async fn confirm(&self, renewed: &mut [Renewed], places: Vec<(std::ops::Range<usize>, Source)>) {
        let wanted = i64::from(self.servers.opener.settings().wait);
        if wanted == 0 {
            return;
        }
        let mut asked = Vec::new();
        for (entries, place) in places {
            let entries = &mut renewed[entries];
            if !entries.iter().any(|renewed| matches!(renewed, Renewed::Held { .. })) {
                continue;
            }
            let have =
                self.replicas(Priority::Urgent, place.clone(), &mut asked).await.unwrap_or_else(|_| {
                    // Not asked again for the others of this connection.
                    asked.push((place, 0));
                    0
                });
            if have < wanted {
                for renewed in entries.iter_mut().filter(|renewed| matches!(renewed, Renewed::Held { .. })) {
                    *renewed = Renewed::Unknown;
                }
            }
        }
    }

    async fn renew_all(&self, leases: &[Renew]) -> Result<Answers<Renewed>, StoreError> {
        let group: Vec<&Renew> = leases.iter().collect();
        let calls = self.calls(&RENEW, &group, |renew| &renew.name, codec::push_renewals);
        let (mut now, mut each) = (None, Vec::with_capacity(leases.len()));
        let (mut failed, mut places) = (None, Vec::new());
        let answered = self.servers.run(Priority::Urgent, &calls).await;
        for (chunk, answered) in leases.chunks(leases.len().div_ceil(calls.len().max(1)).max(1)).zip(answered)
        {
            match answered.and_then(|answered| read_renewals(chunk, answered)) {
                Ok((at, mut renewed, place)) => {
                    now = Some(at);
                    places.push((each.len()..each.len() + renewed.len(), place));
                    each.append(&mut renewed);
                }
                Err(error) => {
                    each.extend(chunk.iter().map(|_| Renewed::Unknown));
                    failed = Some(error);
                }
            }
        }
        if let (None, Some(error)) = (now, failed) {
            return Err(error);
        }
        self.confirm(&mut each, places).await;
        for (renew, renewed) in leases.iter().zip(&each) {
            match renewed {
                Renewed::Held { remaining } if !renew.detach => {
                    self.servers.keep_watch(renew.contender, *remaining);
                }
                // Whoever does not know asks again.
                Renewed::Unknown => {}
                _ => self.servers.end_watch(renew.contender),
            }
        }
        Ok(Answers { now: now.unwrap_or(StoreTime(0)), each })
    }

    async fn time(&self) -> Result<StoreTime, StoreError> {
        check::time(&self.servers, self.servers.map().of(0)).await
    }

    async fn inspect_all(&self, names: &[Name]) -> Result<Vec<ResourceView>, StoreError> {
        let look = |name: &Name| {
            let key = self.keys.resource(name);
            Call::new(&INSPECT, &self.keys, name, 1, move |command, nonce| _ = command.arg(&key).arg(nonce))
        };
        let calls: Vec<_> = names.iter().map(look).collect();
        let mut views = Vec::new();
        for (name, answered) in names.iter().zip(self.servers.run(Priority::Normal, &calls).await) {
            views.extend(Reader::new(answered?).view(name)?);
        }
        Ok(views)
    }

    /// All names of resources that start with `prefix`, in order. Walks through all keys of the servers.
    async fn names(&self, prefix: &str) -> Result<Vec<Name>, StoreError> {
        let mut names = std::collections::BTreeSet::new();
        for server in &self.servers.map().in_use() {
            let mut cursor = "0".to_owned();
            loop {
                let mut scan = redis::cmd("SCAN");
                scan.arg(&cursor).arg("MATCH").arg(self.keys.pattern(prefix)).arg("COUNT").arg(1000);
                let page = self.servers.ask(Priority::Normal, server, scan).await?;
                let (next, keys): (String, Vec<String>) =
                    redis::from_redis_value(page).map_err(|_| trouble::nonsense("a page of keys"))?;
                names.extend(keys.iter().filter_map(|key| self.keys.name(key)));
                if next == "0" {
                    break;
                }
                cursor = next;
            }
        }
        Ok(names.into_iter().filter(|name| name.as_str().starts_with(prefix)).collect())
    }

    async fn page(&self, query: &ListQuery) -> Result<Page, StoreError> {
        let limit = query.limit.max(1);
        let names = self.names(&query.prefix).await?;
        let rest: Vec<Name> =
            names.into_iter().filter(|name| query.after.as_ref().is_none_or(|after| name > after)).collect();
        let mut resources = Vec::new();
        for names in rest.chunks(CAPABILITY.group_limit) {
            resources.append(&mut self.inspect_all(names).await?);
            if resources.len() > limit {
                break;
            }
        }
        let more = resources.len() > limit;
        resources.truncate(limit);
        let next = resources.last().filter(|_| more).map(|last| last.name.clone());
        Ok(Page { resources, next })
    }

    /// Has the scripts tell of changes of a resource, and goes on doing so.
    async fn be_told(&self, name: &Name) -> Result<Background, StoreError> {
        let (servers, keys, name) = (self.servers.clone(), self.keys.clone(), name.clone());
        tell(&servers, &keys, &name).await?;
        let again = async move {
            loop {
                tokio::time::sleep(WATCH_AGAIN).await;
                // What fails now is tried again, well before the scripts forget.
                drop(tell(&servers, &keys, &name).await);
            }
        };
        Ok(Background(self.background.spawn(again).abort_handle()))
    }
}

async fn tell(servers: &Servers, keys: &Keys, name: &Name) -> Result<(), StoreError> {
    let call = Call::new(&CHANGES, keys, name, 2, |command, nonce| {
        command.arg(keys.mark(name)).arg(keys.resource(name)).arg(nonce).arg(WATCHED_FOR.as_micros() as u64);
    });
    servers.run_one(Priority::Urgent, call).await.map(drop)
}

type Source = (Arc<Server>, u64);

fn read_answers(
    chunk: &[&Request],
    answered: Answered,
) -> Result<(StoreTime, Vec<Answer>, Source), StoreError> {
    let place = (answered.server.clone(), answered.generation);
    let mut reader = Reader::new(answered);
    let now = reader.time()?;
    let read = |request: &&Request| match request {
        Request::Claim(claim) => reader.verdict(claim, now).map(Answer::Claim),
        Request::Leave(_) => reader.left().map(Answer::Leave),
    };
    let answers = chunk.iter().map(read).collect::<Result<_, _>>()?;
    Ok((now, answers, place))
}

fn read_renewals(
    chunk: &[Renew],
    answered: Answered,
) -> Result<(StoreTime, Vec<Renewed>, Source), StoreError> {
    let place = (answered.server.clone(), answered.generation);
    let mut reader = Reader::new(answered);
    let now = reader.time()?;
    let renewed = chunk.iter().map(|renew| reader.renewed(renew)).collect::<Result<_, _>>()?;
    Ok((now, renewed, place))
}

/// Turns to another master as soon as the sentinels name one: the old one may be cut off and answer as before. What is held
/// is renewed at once, so that whoever holds what the new master does not know is told.
fn follow(servers: &Arc<Servers>, context: &Context) -> Option<Background> {
    let mut place = servers.sentinels.as_ref()?.place();
    let (servers, wakes) = (Arc::downgrade(servers), context.wakes.clone());
    let follow = async move {
        while place.changed().await.is_ok() {
            let (Some(servers), Some(now)) = (servers.upgrade(), place.borrow_and_update().clone()) else {
                return;
            };
            tracing::info!(master = %now, "the sentinels name another master");
            servers.move_to(&now);
            wakes.wake(Wake::Reconfirm);
        }
    };
    Some(Background(context.background.spawn(follow).abort_handle()))
}

/// Checks the layout's version and learns the store's own id, which is made if there is none.
async fn identify(servers: &Servers, keys: &Keys) -> Result<String, StoreError> {
    let key = keys.layout();
    let map = servers.map();
    let server = map.of(slot(&key));
    let mut get = redis::cmd("GET");
    get.arg(&key);
    let mut found = servers.ask(Priority::Normal, server, get.clone()).await?;
    // Not written where it is there already: a server that takes no writes can still be looked into.
    if found == Value::Nil {
        let mut set = redis::cmd("SET");
        set.arg(&key).arg(format!("{LAYOUT} {}", KeeperId::random())).arg("NX");
        servers.ask(Priority::Normal, server, set).await?;
        found = servers.ask(Priority::Normal, server, get).await?;
    }
    let corrupt = |message: &str| Err(StoreError::new(StoreErrorKind::Corrupt, message));
    let Value::BulkString(text) = found else {
        return corrupt("the key of the layout has no text; choose another namespace= in the URL");
    };
    let text = String::from_utf8_lossy(&text);
    let Some((version, id)) = text.split_once(' ') else {
        return corrupt(
            "the key of the layout is not one of this program; choose another namespace= in the URL",
        );
    };
    match version.parse::<u32>() {
        Ok(LAYOUT) => Ok(id.to_owned()),
        Ok(..LAYOUT) => corrupt(
            "this namespace was written by an older version of this program; once nothing of it is held, remove the keys \
             that begin with it, except those that end with :fence, or choose another namespace= in the URL",
        ),
        _ => corrupt("this namespace was written by a newer version of this program; update this one"),
    }
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStore").field("url", &self.url).finish_non_exhaustive()
    }
}

impl Store for RedisStore {
    fn capability(&self) -> &Capability {
        &CAPABILITY
    }

    fn url(&self) -> &Arc<str> {
        &self.url
    }

    fn id(&self) -> &str {
        &self.id
    }

    fn server_of(&self, name: &Name) -> usize {
        if self.keys.is_sharded() { self.servers.map().of(slot(&self.keys.resource(name))).number } else { 0 }
    }

    fn apply<'a>(&'a self, group: &'a [Request]) -> Reply<'a, Answers<Answer>> {
        Box::pin(self.apply_group(group))
    }

    fn renew<'a>(&'a self, leases: &'a [Renew]) -> Reply<'a, Answers<Renewed>> {
        Box::pin(self.renew_all(leases))
    }

    fn watch<'a>(&'a self, topic: &'a Topic) -> Reply<'a, Option<Watch>> {
        Box::pin(async move {
            let told = match topic {
                Topic::Grants(_) if !self.keys.is_sharded() => return Ok(None),
                Topic::Changes(name) => Some(self.be_told(name).await?),
                _ => None,
            };
            let Some(channel) = self.keys.channel(topic, self.keeper) else { return Ok(None) };
            Ok(Some(Watch::new((self.listeners.listen(channel, SUBSCRIBING).await, told))))
        })
    }

    fn inspect<'a>(&'a self, name: &'a Name) -> Reply<'a, Option<ResourceView>> {
        Box::pin(async move { Ok(self.inspect_all(std::slice::from_ref(name)).await?.pop()) })
    }

    fn list<'a>(&'a self, query: &'a ListQuery) -> Reply<'a, Page> {
        Box::pin(self.page(query))
    }

    fn evict<'a>(&'a self, order: &'a Evict) -> Reply<'a, Evicted> {
        let Evict { name, contender, number, how } = order;
        let call = Call::new(&EVICT, &self.keys, name, 2, move |command, nonce| {
            command.arg(self.keys.mark(name)).arg(self.keys.resource(name)).arg(nonce);
            command.arg(contender.to_string()).arg(*number).arg(u8::from(*how == Eviction::Immediate));
        });
        Box::pin(async move {
            let mut reader = Reader::new(self.servers.run_one(Priority::Normal, call).await?);
            Ok(if reader.number()? == 1 { Evicted::Done } else { Evicted::NotHeld })
        })
    }

    fn count<'a>(&'a self, count: &'a Count) -> Reply<'a, Answers<Counted>> {
        let Count { name, op, not_after, action } = count;
        let (word, amount) = match *action {
            CountAction::Create(amount) => ("create", amount),
            CountAction::Down(by) => ("down", by),
            CountAction::Reset => ("reset", 0),
            CountAction::Delete => ("delete", 0),
            CountAction::Read => ("read", 0),
        };
        let call = Call::new(&COUNT, &self.keys, name, 3, move |command, nonce| {
            command.arg(self.keys.mark(name)).arg(self.keys.latch(name)).arg(self.keys.operation(name, *op));
            command.arg(nonce).arg(not_after.0).arg(word).arg(amount);
            command.arg(COUNT_MEMORY.as_micros() as u64).arg(LATCH_LIFE.as_millis() as u64);
        });
        Box::pin(async move {
            if matches!(action, CountAction::Create(count) if *count >= 1 << 53) {
                let message = "a latch of this store counts to 2^53 - 1; use a smaller count";
                return Err(StoreError::new(StoreErrorKind::Unsupported, message));
            }
            let mut reader = Reader::new(self.servers.run_one(Priority::Normal, call).await?);
            if matches!(action, CountAction::Read) {
                self.listeners.check_runtime();
            }
            Ok(Answers { now: reader.time()?, each: vec![reader.counted()?] })
        })
    }

    fn fence<'a>(&'a self, admit: &'a Admit) -> Reply<'a, Admitted> {
        let Admit { name, token, floor } = admit;
        let call = Call::new(&FENCE, &self.keys, name, 1, move |command, nonce| {
            command.arg(self.keys.fence(name)).arg(nonce).arg(token.to_string()).arg(floor.to_string());
        });
        Box::pin(async move {
            let mut reader = Reader::new(self.servers.run_one(Priority::Normal, call).await?);
            Ok(match reader.number()? {
                1 => Admitted::Yes,
                _ => Admitted::Stale { highest: reader.token()? },
            })
        })
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        self.listeners.close();
        self.servers.close();
        Box::pin(std::future::ready(()))
    }
}

impl Drop for RedisStore {
    fn drop(&mut self) {
        self.listeners.close();
        self.servers.close();
    }
}

/// A task on the keeper's thread; ends when dropped.
struct Background(AbortHandle);

impl Drop for Background {
    fn drop(&mut self) {
        self.0.abort();
    }
}
