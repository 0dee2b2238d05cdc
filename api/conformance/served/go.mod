module svcctl.io/svcctl/api/conformance/served

go 1.26.0
