package main

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
	"svcctl.io/svcctl/store/object"
)

// outAnnotation names the addresses of endpoints that are not used (health.AnnotationOut).
const outAnnotation = "svcctl.io/out"

func (p *program) outVerb() *verb {
	return &verb{
		name:    "out",
		summary: "take endpoints out of a Service",
		args:    "svc/NAME ADDRESS... [FLAGS]",
		about: `Takes addresses out of a Service, like endpoints with ready: false: they get no new
connection, not even when no other endpoint is up, and open ones drain as the Service is
configured. It writes the annotation ` + outAnnotation + ` of the Service; if a file has that,
change it in the file. It lasts until ` + "`svcctl in`" + `.`,
		options: slices.Concat([]*option{namespaceOption()}, connectOptions()),
		examples: []example{
			{"Before work on a server.", "svcctl out svc/web 10.1.2.11"},
		},
		exits: outExits,
		run:   func(ctx context.Context, v *verb, args []string) error { return p.runOut(ctx, v, args, true) },
	}
}

func (p *program) inVerb() *verb {
	return &verb{
		name:    "in",
		summary: "return endpoints to a Service",
		args:    "svc/NAME [ADDRESS...] [FLAGS]",
		about: `Returns addresses to a Service that ` + "`svcctl out`" + ` took out; without an
address, all of them. With a health check they get connections once they pass it.`,
		options: slices.Concat([]*option{namespaceOption()}, connectOptions()),
		examples: []example{
			{"After it.", "svcctl in svc/web 10.1.2.11"},
		},
		exits: outExits,
		run:   func(ctx context.Context, v *verb, args []string) error { return p.runOut(ctx, v, args, false) },
	}
}

const outExits = `  0  done, or it was so
  1  refused: stderr has the reason
  2  wrong usage or configuration
  3  the appliance cannot be reached`

// runOut takes addresses out of a Service, or lets them in again.
func (p *program) runOut(ctx context.Context, v *verb, args []string, out bool) error {
	if len(args) == 0 || out && len(args) == 1 {
		return usagef("%s which endpoints? Give a Service and addresses, as svc/web 10.1.2.11", v.name)
	}
	t, err := p.oneService(v, args[0])
	if err != nil {
		return err
	}
	asked, err := addressesOf(args[1:])
	if err != nil {
		return err
	}
	c, err := p.client(v)
	if err != nil {
		return err
	}
	const tries = 5 // others may write the Service at the same time
	for try := 1; ; try++ {
		err = p.changeOut(ctx, c, t, asked, out)
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
			return nil, usagef("%q is no address of an endpoint: write one as 10.1.2.11, without a port", word)
		}
		list = append(list, addr.Unmap())
	}
	return list, nil
}

// changeOut writes the annotation once.
func (p *program) changeOut(ctx context.Context, c *client.Client, t target, asked []netip.Addr, out bool) error {
	var svc object.Service
	if err := typed(ctx, c, t.path(), &svc); err != nil {
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
		return p.print(outText(t, now, "It was so: "))
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
	if _, err := c.Patch(ctx, t.path(), url.Values{"fieldManager": {manager}}, client.MergePatch, patch); err != nil {
		return err
	}
	if out {
		return p.print(outText(t, now, ""))
	}
	back := slices.DeleteFunc(before, func(a netip.Addr) bool { return slices.Contains(now, a) })
	answer := fmt.Sprintf("back in %s: %s\n", t, joinAddrs(back))
	if len(now) > 0 {
		answer += "still " + outText(t, now, "")
	}
	return p.print(answer)
}

// areBehind refuses addresses that no slice of the Service has.
func areBehind(ctx context.Context, c *client.Client, t target, asked []netip.Addr) error {
	all, err := slicesOf(ctx, c, t.namespace, t.name)
	if err != nil {
		return err
	}
	for _, addr := range asked {
		if !slices.ContainsFunc(all, func(s *object.EndpointSlice) bool {
			return slices.ContainsFunc(s.Endpoints, func(e object.Endpoint) bool { return slices.Contains(e.Addresses, addr.String()) })
		}) {
			return fmt.Errorf("%s is no endpoint of %s: `svcctl describe %s -n %s` lists them", addr, t, t, t.namespace)
		}
	}
	return nil
}

func joinAddrs(list []netip.Addr) string {
	words := make([]string, len(list))
	for i, a := range list {
		words[i] = a.String()
	}
	return strings.Join(words, ",")
}

// outText lists the endpoints that are taken out.
func outText(t target, out []netip.Addr, begin string) string {
	if len(out) == 0 {
		return fmt.Sprintf("%sno endpoint of %s is taken out.\n", begin, t)
	}
	return fmt.Sprintf("%sout of %s: %s\n", begin, t, joinAddrs(out))
}
