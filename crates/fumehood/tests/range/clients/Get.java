import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;

/** One GET with Java's own client and Java's own trust. */
public class Get {
    public static void main(String[] arguments) throws Exception {
        HttpRequest request = HttpRequest.newBuilder(URI.create("https://" + arguments[0] + "/page")).build();
        HttpResponse<String> answer = HttpClient.newHttpClient().send(request, HttpResponse.BodyHandlers.ofString());
        if (answer.statusCode() != 200 || !answer.body().contains("served_by")) {
            throw new IllegalStateException(answer.statusCode() + ": " + answer.body());
        }
        System.out.println("ok");
    }
}
