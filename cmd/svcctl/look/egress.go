package look

import (
	"cmp"
	"context"

	"svcctl.io/svcctl/api/client"
	"svcctl.io/svcctl/api/diagnose"
	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/cmd/svcctl/cli"
	"svcctl.io/svcctl/cmd/svcctl/describe"
	"svcctl.io/svcctl/store/object"
)

// egress writes the traffic of the hosts whose outgoing connections use addresses of a Service, if the Service has egress.
func (d *describing) egress(ctx context.Context, page *describe.Page, svc *object.Service) error {
	if _, asks := svc.Metadata.Annotations[object.AnnotationEgress]; !asks {
		return nil
	}
	seen, err := traffic(ctx, d.c, wire.TrafficQuery{Namespace: svc.Metadata.Namespace, Service: svc.Metadata.Name, Sort: "open", Limit: 1})
	if seen != nil {
		page.Egress(seen.Egress)
	}
	return err
}

// explainEndpoint prints findings about an endpoint address.
func explainEndpoint(ctx context.Context, env *cli.Env, c *client.Client, f diagnose.Facts, backends []diagnose.Backend) (err error) {
	if f.Traffic, err = traffic(ctx, c, wire.TrafficQuery{Sort: "open", Limit: 1, Source: f.Question.Address}); err != nil {
		return err
	}
	f.Traffic = cmp.Or(f.Traffic, new(wire.Traffic)) // nil: the appliance counts none
	return printFindings(env, questionText(f.Question), diagnose.Endpoint(f, backends))
}
