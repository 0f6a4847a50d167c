//! The Identity service: what the plugin is called, what it can do, and whether it works.

use tonic::{Request, Response, Status};

use crate::v1::identity_server::Identity;
use crate::v1::plugin_capability::{Service, Type, VolumeExpansion, service, volume_expansion};
use crate::v1::{
    GetPluginCapabilitiesRequest, GetPluginCapabilitiesResponse, GetPluginInfoRequest,
    GetPluginInfoResponse, PluginCapability, ProbeRequest, ProbeResponse,
};
use crate::{Controller, DRIVER};

/// The identity service of a plugin, which may have a controller.
#[derive(Debug)]
pub(crate) struct Plugin(pub(crate) Option<Controller>);

#[tonic::async_trait]
impl Identity for Plugin {
    async fn get_plugin_info(
        &self,
        _: Request<GetPluginInfoRequest>,
    ) -> Result<Response<GetPluginInfoResponse>, Status> {
        Ok(Response::new(GetPluginInfoResponse {
            name: DRIVER.to_owned(),
            vendor_version: env!("CARGO_PKG_VERSION").to_owned(),
            ..GetPluginInfoResponse::default()
        }))
    }

    /// Which services the driver has is the same at each of its processes.
    async fn get_plugin_capabilities(
        &self,
        _: Request<GetPluginCapabilitiesRequest>,
    ) -> Result<Response<GetPluginCapabilitiesResponse>, Status> {
        let service = Service { r#type: service::Type::ControllerService.into() };
        let online = VolumeExpansion { r#type: volume_expansion::Type::Online.into() };
        let types = [Type::Service(service), Type::VolumeExpansion(online)];
        let capabilities = types.map(|kind| PluginCapability { r#type: Some(kind) }).to_vec();
        Ok(Response::new(GetPluginCapabilitiesResponse { capabilities }))
    }

    async fn probe(&self, _: Request<ProbeRequest>) -> Result<Response<ProbeResponse>, Status> {
        if let Some(controller) = &self.0 {
            controller.probe().await?;
        }
        Ok(Response::new(ProbeResponse { ready: Some(true) }))
    }
}
