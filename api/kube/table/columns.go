package table

import (
	"svcctl.io/svcctl/store/kind"
	"svcctl.io/svcctl/store/object"
)

// text is a string column, described as the field that it shows.
func text(name, field string) Column {
	return Column{Name: name, Type: "string", Description: object.Doc(field)}
}

// wide is a column that only wide output shows.
func wide(c Column) Column {
	c.Priority = 1
	return c
}

func nameColumn() Column {
	c := text("Name", "ObjectMeta.name")
	c.Format = "name"
	return c
}

func ageColumn() Column { return text("Age", "ObjectMeta.creationTimestamp") }

// Columns returns the columns of a kind. Kinds that are not stored have a name and an
// age.
func Columns(k kind.Kind) []Column {
	name, age := nameColumn(), ageColumn()
	switch k.Name {
	case object.KindService:
		return []Column{
			name, text("Type", "ServiceSpec.type"), text("Cluster-IP", "ServiceSpec.clusterIP"),
			text("External-IP", "ServiceSpec.externalIPs"), text("Port(s)", "ServiceSpec.ports"), age,
			wide(text("Selector", "ServiceSpec.selector")),
		}
	case object.KindEndpoints:
		return []Column{name, text("Endpoints", "Endpoints.subsets"), age}
	case object.KindEndpointSlice:
		return []Column{
			name, text("AddressType", "EndpointSlice.addressType"), text("Ports", "EndpointSlice.ports"),
			text("Endpoints", "EndpointSlice.endpoints"), age,
		}
	case object.KindPod:
		return []Column{
			name, text("Ready", "PodStatus.conditions"), text("Status", "PodStatus.phase"), age,
			wide(text("IP", "PodStatus.podIP")), wide(text("Node", "PodSpec.nodeName")),
		}
	case object.KindNode:
		return []Column{
			name, text("Status", "NodeStatus.conditions"), text("Roles", "ObjectMeta.labels"), age,
			text("Version", "NodeSystemInfo.kubeletVersion"),
			wide(text("Internal-IP", "NodeStatus.addresses")), wide(text("External-IP", "NodeStatus.addresses")),
			wide(text("OS-Image", "NodeSystemInfo.osImage")), wide(text("Kernel-Version", "NodeSystemInfo.kernelVersion")),
			wide(text("Container-Runtime", "NodeSystemInfo.containerRuntimeVersion")),
		}
	case object.KindEvent:
		return eventColumns()
	case object.KindNamespace:
		return []Column{name, text("Status", "NamespaceStatus.phase"), age}
	case object.KindConfigMap:
		return []Column{name, text("Data", "ConfigMap.data"), age}
	case object.KindSecret:
		return []Column{name, text("Type", "Secret.type"), text("Data", "Secret.data"), age}
	case object.KindLease:
		return []Column{name, text("Holder", "LeaseSpec.holderIdentity"), age}
	case object.KindIPAddressPool:
		return []Column{
			name, text("Auto Assign", "IPAddressPoolSpec.autoAssign"), text("Avoid Buggy IPs", "IPAddressPoolSpec.avoidBuggyIPs"),
			text("Addresses", "IPAddressPoolSpec.addresses"), wide(age),
		}
	case object.KindL2Advertisement:
		return []Column{
			name, text("IPAddressPools", "L2AdvertisementSpec.ipAddressPools"), text("Interfaces", "L2AdvertisementSpec.interfaces"), wide(age),
		}
	case object.KindBGPAdvertisement:
		return []Column{
			name, text("IPAddressPools", "BGPAdvertisementSpec.ipAddressPools"), text("Peers", "BGPAdvertisementSpec.peers"),
			text("Communities", "BGPAdvertisementSpec.communities"), wide(age),
		}
	case object.KindServiceL2Status:
		return []Column{
			name, text("Allocated Node", "ServiceL2StatusStatus.node"), text("Service Name", "ServiceL2StatusStatus.serviceName"),
			text("Service Namespace", "ServiceL2StatusStatus.serviceNamespace"), wide(age),
		}
	case object.KindServiceBGPStatus:
		return []Column{
			name, text("Node", "ServiceBGPStatusStatus.node"), text("Service Name", "ServiceBGPStatusStatus.serviceName"),
			text("Service Namespace", "ServiceBGPStatusStatus.serviceNamespace"), wide(age),
		}
	case object.KindConfigurationState:
		return []Column{name, text("Result", "ConfigurationStateStatus.result"), text("ErrorSummary", "ConfigurationStateStatus.errorSummary"), age}
	case object.KindBFDProfile:
		return []Column{
			name, text("Transmit Interval", "BFDProfileSpec.transmitInterval"), text("Receive Interval", "BFDProfileSpec.receiveInterval"),
			text("Multiplier", "BFDProfileSpec.detectMultiplier"), wide(age),
		}
	case object.KindBGPPeer:
		return []Column{
			name, text("Address", "BGPPeerSpec.peerAddress"), text("ASN", "BGPPeerSpec.peerASN"),
			text("BFD Profile", "BGPPeerSpec.bfdProfile"), wide(age),
		}
	case object.KindGatewayClass:
		return []Column{
			name, text("Controller", "GatewayClassSpec.controllerName"), text("Accepted", "GatewayClassStatus.conditions"), age,
			wide(text("Description", "GatewayClassSpec.description")),
		}
	case object.KindGateway:
		return []Column{
			name, text("Class", "GatewaySpec.gatewayClassName"), text("Address", "GatewayStatus.addresses"),
			text("Programmed", "GatewayStatus.conditions"), age,
		}
	case object.KindListenerSet:
		return []Column{name, text("Accepted", "ListenerSetStatus.conditions"), text("Programmed", "ListenerSetStatus.conditions"), age}
	case object.KindTLSRoute:
		return []Column{name, text("Hostnames", "TLSRouteSpec.hostnames"), age}
	case object.KindHTTPRoute:
		return []Column{name, text("Hostnames", "HTTPRouteSpec.hostnames"), age}
	case object.KindServiceCIDR:
		return []Column{name, text("CIDRs", "ServiceCIDRSpec.cidrs"), age}
	case object.KindIPAddress:
		return []Column{name, text("ParentRef", "IPAddressSpec.parentRef")}
	}
	return []Column{name, age}
}

func eventColumns() []Column {
	return []Column{
		text("Last Seen", "Event.lastTimestamp"), text("Type", "Event.type"), text("Reason", "Event.reason"),
		text("Object", "Event.involvedObject"), wide(text("Subobject", "ObjectReference.fieldPath")),
		wide(text("Source", "Event.source")), text("Message", "Event.message"),
		wide(text("First Seen", "Event.firstTimestamp")), wide(text("Count", "Event.count")), wide(nameColumn()),
	}
}
