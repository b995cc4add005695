//! The account at an authority.

use instant_acme::{
    Account, AccountBuilder, AccountCredentials, Error, ExternalAccountKey, NewAccount,
};
use millrace_config::{Acme, AcmeContent};

use super::directory::{DirectoryClient, RetryAfter, retry, run};
use super::state::{FileNames, StateFolder};
use super::status::{Step, StepFailure};

/// Returns the stored account, or creates one and stores it.
///
/// # Errors
/// If the authority cannot be reached or refuses the account, or the file cannot be written.
pub(super) fn open(
    acme: &Acme,
    content: &AcmeContent,
    folder: &StateFolder,
    files: &FileNames,
    retry_after: &RetryAfter,
) -> Result<Account, StepFailure> {
    let stored =
        folder.read(&files.account).map_err(|error| StepFailure::new(Step::State, &error))?;
    let credentials: Option<AccountCredentials> =
        stored.and_then(|text| serde_json::from_str(&text).ok());
    if let Some(credentials) = credentials {
        return run(builder(content, retry_after).from_credentials(credentials)).map_err(failed);
    }
    // On a full disk each attempt would create an account.
    let file = folder.reserve(&files.account);
    let file = file.map_err(|error| StepFailure::new(Step::State, &error))?;
    let (account, credentials) = create(acme, content, retry_after)?;
    let text = serde_json::to_string(&credentials).expect("credentials are text");
    file.finish(&text).map_err(|error| StepFailure::new(Step::State, &error))?;
    Ok(account)
}

/// Creates an account. Returns it with its credentials.
///
/// # Errors
/// If the authority cannot be reached or refuses the account.
pub(super) fn create(
    acme: &Acme,
    content: &AcmeContent,
    retry_after: &RetryAfter,
) -> Result<(Account, AccountCredentials), StepFailure> {
    let external = content
        .external_account
        .as_ref()
        .map(|(identifier, key)| ExternalAccountKey::new(identifier.to_string(), key));
    let contact = format!("mailto:{}", acme.mail);
    let account = NewAccount {
        contact: &[&contact],
        terms_of_service_agreed: true,
        only_return_existing: false,
    };
    let create = || {
        let builder = builder(content, retry_after);
        run(builder.create(&account, acme.directory.clone(), external.as_ref()))
    };
    retry(create).map_err(failed)
}

fn builder(content: &AcmeContent, retry_after: &RetryAfter) -> AccountBuilder {
    let client = DirectoryClient::new(content, retry_after.clone());
    Account::builder_with_http(Box::new(client))
}

fn failed(error: Error) -> StepFailure {
    StepFailure::new(Step::Account, &error)
}
