//! `/v1/fence`: shows a token to a fence at the store.

use std::sync::Arc;

use axum::{extract::State, response::Response};
use lockkeeper::Token;
use serde_json::json;

use crate::{
    app::App,
    caller::Caller,
    problem::{ErrorBody, Problem, Refusals},
    request::Asked,
    shapes::{Admitted, FenceRequest},
};

/// Shows a token to a fence, which admits it unless a later holder has been there.
#[utoipa::path(
    post,
    path = "/v1/fence",
    tag = "locks",
    request_body = FenceRequest,
    responses(
        (status = 200, description = "It is admitted", body = Admitted),
        (status = 409, description = "A later holder has been there", body = ErrorBody),
        Refusals,
    )
)]
pub(super) async fn fence(
    State(app): State<Arc<App>>,
    caller: Caller,
    asked: Asked<FenceRequest>,
) -> Result<Response, Problem> {
    super::change(
        app,
        caller,
        "/v1/fence",
        asked,
        async move |app: Arc<App>, caller: Caller, FenceRequest { name, token, floor }| {
            caller.check_name(&name)?;
            let token: Token = token.parse()?;
            let floor = floor.map_or(Ok(token), |floor| floor.parse())?;
            let result = app.keeper.fence(&name).admit_shared(token, floor).await.map_err(Problem::from);
            let token = token.to_string();
            app.audit(
                &caller,
                "fence",
                &name,
                super::outcome(&result, "admitted"),
                json!({ "token": token }),
            );
            result.map(|()| Admitted { name, token })
        },
    )
    .await
}
