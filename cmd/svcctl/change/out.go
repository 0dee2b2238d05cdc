package change

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"svcctl.io/svcctl/api/client"
	"svcctl.io/svcctl/api/wire"
	"svcctl.io/svcctl/cmd/svcctl/cli"
	"svcctl.io/svcctl/cmd/svcctl/resource"
	"svcctl.io/svcctl/cmd/svcctl/settings"
	"svcctl.io/svcctl/store/object"
)

// OutCandidates returns endpoint addresses of a Service for completion, without the ones in given. With back, they are the addresses that have been
// taken out of load balancing, otherwise the addresses that have not.
func OutCandidates(ctx context.Context, appliance *client.Client, t resource.Target, given []string, back bool) (all []string, err error) {
	var svc object.Service
	if err := appliance.Typed(ctx, t.Path(), &svc); err != nil {
		return nil, err
	}
	taken, err := addressesOf(strings.FieldsFunc(svc.Metadata.Annotations[outAnnotation], func(r rune) bool { return r == ',' || r == ' ' }))
	if err != nil {
		return nil, err
	}
	if out := strings.Split(joinAddrs(taken), ","); back {
		all = out
	} else {
		endpoints, err := resource.SlicesOf(ctx, appliance, t.Namespace, t.Name)
		if err != nil {
			return nil, err
		}
		for _, s := range endpoints {
			for _, e := range s.Endpoints {
				all = append(all, e.Addresses...)
			}
		}
		given = append(given, out...)
	}
	slices.Sort(all)
	return slices.DeleteFunc(slices.Compact(all), func(addr string) bool { return slices.Contains(given, addr) }), nil
}

// outAnnotation is the annotation of a Service that lists the addresses of endpoints which get no new connections (health.AnnotationOut).
const outAnnotation = "svcctl.io/out"

func OutVerb() *cli.Verb { return outVerb("out", true) }

func InVerb() *cli.Verb { return outVerb("in", false) }

func outVerb(name string, out bool) *cli.Verb {
	return &cli.Verb{
		Name:    name,
		Options: slices.Concat([]*cli.Option{settings.NamespaceOption()}, settings.ConnectOptions()),
		Run: func(ctx context.Context, env *cli.Env, v *cli.Verb, args []string) error {
			return runOut(ctx, env, v, args, out)
		},
	}
}

// runOut adds endpoint addresses to the annotation svcctl.io/out of a Service (out is true), or removes them from it.
func runOut(ctx context.Context, env *cli.Env, v *cli.Verb, args []string, out bool) error {
	if len(args) == 0 || out && len(args) == 1 {
		return cli.Usagef("%s which endpoints? Give a Service and addresses, as svc/web 10.1.2.11", v.Name)
	}
	t, err := resource.OneService(env, v, args[0])
	if err != nil {
		return err
	}
	asked, err := addressesOf(args[1:])
	if err != nil {
		return err
	}
	c := env.Client(v)
	const tries = 5 // others may write the Service at the same time
	for try := 1; ; try++ {
		err = changeOut(ctx, env, c, t, asked, out)
		if conflict, is := errors.AsType[*wire.Failure](err); !is || conflict.Code != 409 || try == tries {
			return err
		}
	}
}

func addressesOf(words []string) ([]netip.Addr, error) {
	var list []netip.Addr
	for _, word := range words {
		addr, err := netip.ParseAddr(strings.Trim(word, "[]"))
		if err != nil {
			return nil, cli.Usagef("%q is no address of an endpoint: write one as 10.1.2.11, without a port", word)
		}
		list = append(list, addr.Unmap())
	}
	return list, nil
}

// changeOut makes one attempt to update the annotation svcctl.io/out. It fails if the Service was changed concurrently.
func changeOut(ctx context.Context, env *cli.Env, c *client.Client, t resource.Target, asked []netip.Addr, out bool) error {
	var svc object.Service
	if err := c.Typed(ctx, t.Path(), &svc); err != nil {
		return err
	}
	before, err := addressesOf(strings.FieldsFunc(svc.Metadata.Annotations[outAnnotation], func(r rune) bool { return r == ',' || r == ' ' }))
	if err != nil {
		return fmt.Errorf("the annotation %s of %s cannot be read: %v", outAnnotation, t, err)
	}
	now := slices.Clone(before)
	if out {
		if err := areBehind(ctx, c, t, asked); err != nil {
			return err
		}
		now = append(now, asked...)
	} else {
		now = slices.DeleteFunc(now, func(a netip.Addr) bool { return len(asked) == 0 || slices.Contains(asked, a) })
	}
	slices.SortFunc(now, netip.Addr.Compare)
	now = slices.Compact(now)
	slices.SortFunc(before, netip.Addr.Compare)
	if slices.Equal(now, before) {
		return env.Print(outText(t, now, "Nothing to do: "))
	}
	var text any // null removes it
	if len(now) > 0 {
		text = joinAddrs(now)
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"resourceVersion": svc.Metadata.ResourceVersion, "annotations": map[string]any{outAnnotation: text},
	}})
	if err != nil {
		return err
	}
	if _, err := c.Patch(ctx, t.Path(), url.Values{"fieldManager": {manager}}, client.MergePatch, patch); err != nil {
		return err
	}
	if out {
		return env.Print(outText(t, now, ""))
	}
	back := slices.DeleteFunc(before, func(a netip.Addr) bool { return slices.Contains(now, a) })
	answer := fmt.Sprintf("back in %s: %s\n", t, joinAddrs(back))
	if len(now) > 0 {
		answer += "still " + outText(t, now, "")
	}
	return env.Print(answer)
}

// areBehind returns an error if one of the addresses is not an endpoint of the Service.
func areBehind(ctx context.Context, c *client.Client, t resource.Target, asked []netip.Addr) error {
	all, err := resource.SlicesOf(ctx, c, t.Namespace, t.Name)
	if err != nil {
		return err
	}
	for _, addr := range asked {
		if !slices.ContainsFunc(all, func(s *object.EndpointSlice) bool {
			return slices.ContainsFunc(s.Endpoints, func(e object.Endpoint) bool { return slices.Contains(e.Addresses, addr.String()) })
		}) {
			return fmt.Errorf("%s is no endpoint of %s: `svcctl describe %s -n %s` lists them", addr, t, t, t.Namespace)
		}
	}
	return nil
}

func joinAddrs(list []netip.Addr) string {
	return strings.Join(object.Texts(list, netip.Addr.String), ",")
}

// outText lists the endpoints that are taken out of load balancing. begin is the start of the text.
func outText(t resource.Target, out []netip.Addr, begin string) string {
	if len(out) == 0 {
		return fmt.Sprintf("%sno endpoint of %s is taken out.\n", begin, t)
	}
	return fmt.Sprintf("%sout of %s: %s\n", begin, t, joinAddrs(out))
}
