// What tests need of Helm: `helm lint` and `helm template`, by Helm's own packages (the loader, the rules, the engine, the sorting).
//
// The command itself also has the clients of registries and clusters, and takes minutes longer to build.
//
//	helm lint CHART [VALUES.yaml…]
//	helm template RELEASE NAMESPACE CHART [VALUES.yaml…]
package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	"helm.sh/helm/v4/pkg/chart/v2/lint"
	"helm.sh/helm/v4/pkg/chart/v2/lint/support"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	chartutil "helm.sh/helm/v4/pkg/chart/v2/util"
	"helm.sh/helm/v4/pkg/engine"
	releaseutil "helm.sh/helm/v4/pkg/release/v1/util"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "Error:", err)
		os.Exit(1)
	}
}

func run(arguments []string) error {
	switch {
	case len(arguments) >= 2 && arguments[0] == "lint":
		return linted(arguments[1], arguments[2:])
	case len(arguments) >= 4 && arguments[0] == "template":
		return rendered(arguments[1], arguments[2], arguments[3], arguments[4:])
	}
	return fmt.Errorf("helm lint CHART [VALUES…], or helm template RELEASE NAMESPACE CHART [VALUES…]")
}

// linted prints every message; a warning fails, as with `helm lint --strict`.
func linted(chart string, files []string) error {
	given, err := merged(files)
	if err != nil {
		return err
	}
	found := lint.RunAll(chart, given, "default")
	for _, message := range found.Messages {
		fmt.Println(message)
	}
	if found.HighestSeverity >= support.WarningSev {
		return fmt.Errorf("%s failed", chart)
	}
	return nil
}

// rendered prints the objects in the order in which Helm would send them.
func rendered(release string, namespace string, path string, files []string) error {
	given, err := merged(files)
	if err != nil {
		return err
	}
	chart, err := loader.Load(path)
	if err != nil {
		return err
	}
	if err := chartutil.ProcessDependencies(chart, given); err != nil {
		return err
	}
	options := common.ReleaseOptions{Name: release, Namespace: namespace, Revision: 1, IsInstall: true}
	values, err := util.ToRenderValues(chart, given, options, common.DefaultCapabilities)
	if err != nil {
		return err
	}
	texts, err := engine.Engine{}.Render(chart, values)
	if err != nil {
		return err
	}
	for name := range texts {
		if strings.HasSuffix(filepath.Base(name), "NOTES.txt") {
			delete(texts, name)
		}
	}
	_, manifests, err := releaseutil.SortManifests(texts, nil, releaseutil.InstallOrder)
	if err != nil {
		return err
	}
	for _, manifest := range manifests {
		fmt.Printf("---\n# Source: %s\n%s\n", manifest.Name, manifest.Content)
	}
	return nil
}

// merged is what the files say, each over the ones before it.
func merged(files []string) (map[string]any, error) {
	all := map[string]any{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		values, err := loader.LoadValues(strings.NewReader(string(text)))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		all = loader.MergeMaps(all, values)
	}
	return all, nil
}
