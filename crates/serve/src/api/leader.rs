//! `/v1/leader`: the leader of an election. To lead, acquire its name with a `value`.

use std::sync::Arc;

use axum::{extract::State, response::Response};

use crate::{
    app::{App, ok, to_json},
    caller::Caller,
    problem::{Problem, Refusals},
    request::Params,
    shapes::{Leadership, NameParams},
};
use lockkeeper::store::Name;

/// Shows the leader of an election.
#[utoipa::path(
    get,
    path = "/v1/leader",
    tag = "looking",
    params(NameParams),
    responses((status = 200, description = "Who leads, if anybody", body = Leadership), Refusals)
)]
pub(super) async fn leader(
    State(app): State<Arc<App>>,
    caller: Caller,
    Params(NameParams { name }): Params<NameParams>,
) -> Result<Response, Problem> {
    Name::new(&name)?;
    caller.check_name(&name)?;
    let leader = app.keeper.election(&name).leader().await?;
    Ok(ok(to_json(&Leadership { name, leader: leader.map(Into::into) })?))
}
